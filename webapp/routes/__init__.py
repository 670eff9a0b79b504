"""The calls of the API, one file for each family of addresses."""
