"""Calls that wait for their answers, and what wakes them."""
