"""Fitting again on what was logged, and deciding whether the result may serve."""
