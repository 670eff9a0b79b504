"""Errors of ETAs on the real stack."""
