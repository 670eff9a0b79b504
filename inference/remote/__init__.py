"""Engines of others: servers that speak HTTP, behind the interface of our own engine; imports no torch."""
