"""The `magnus` command: starts and stops the service, talks to it, measures it."""
