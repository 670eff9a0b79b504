"""One file for each group of `magnus` commands."""
