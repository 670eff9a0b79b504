"""Commands that talk to a running service over its API."""
