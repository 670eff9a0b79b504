"""Correcting predictions online by what really came, and noticing when they drift."""
