"""Texts as numbers: sentence vectors, hashed words, the look of a text and the intent of a request."""
