"""The figures that the API is held to, each measured on a whole service of its own."""
