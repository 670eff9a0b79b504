"""Simulates every published policy and compares the figures with those of its paper."""
