"""How statements are written: SQL of our own, made into a statement once."""
