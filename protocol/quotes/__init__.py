"""Quotes in the API: the body that asks for one, and the offers that answer it."""
