"""Turns a request's texts into the tokens that a model reads."""
