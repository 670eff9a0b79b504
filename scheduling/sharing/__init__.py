"""Policies that wrap another policy, to share a fleet among tenants, classes of work, models and abilities."""
