"""Connections to Postgres: bounded waits, errors as one line, and the state of the schema."""
