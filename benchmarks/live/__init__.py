"""Compares the policies, and peers that serve the same API in other ways, on whole services."""
