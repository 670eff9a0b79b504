"""Loads a model, or refuses it with an error of one line, and checks that it is decoded right."""
