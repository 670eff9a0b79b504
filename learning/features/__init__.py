"""Texts as numbers: encoders, hashed words, what a text looks like and asks for."""
