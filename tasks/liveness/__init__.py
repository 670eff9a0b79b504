"""Signs of life, and work that is done even while no tick comes."""
