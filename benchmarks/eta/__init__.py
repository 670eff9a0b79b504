"""Measures the errors of ETAs on whole services."""
