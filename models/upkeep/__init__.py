"""What keeps the database clean and whole."""
