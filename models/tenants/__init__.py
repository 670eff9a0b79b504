"""Tenants: their settings, the scopes of their keys, their usage."""
