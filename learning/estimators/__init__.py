"""Fitted functions that know nothing of requests: forests, regressions, cost curves, distributions."""
