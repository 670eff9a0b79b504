"""Conversations over several responses: what came before, what came in, what is cut off."""
