"""Upkeep of the database: invariants, recovery from losses, retention."""
