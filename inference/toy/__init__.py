"""Six toy applications and the script that teaches them to the bundled model."""
