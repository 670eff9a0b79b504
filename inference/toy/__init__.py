"""Six toy applications, and the script that trains the bundled model on them."""
