"""What is refused for its size or its model."""
