"""Measures whether the API keeps its bounds on time, memory and CPU; each figure has a whole service of its own."""
