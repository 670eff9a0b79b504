"""Loads a model, or refuses it in one line, and checks that it is decoded right."""
