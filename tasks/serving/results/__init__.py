"""Brings an engine's tokens and answers to the database and to streams."""
