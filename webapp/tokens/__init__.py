"""Counting, encoding and decoding of tokens for clients."""
