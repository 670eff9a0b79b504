"""What `magnus demo` sends, the service that it starts, its progress and its figures."""
