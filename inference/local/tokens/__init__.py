"""Tells which tokens a row's format allows next, and chooses the next token from the logits."""
