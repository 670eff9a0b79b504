"""Answers as server-sent events while they are generated."""
