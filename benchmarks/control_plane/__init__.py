"""What deciding costs, apart from everything that is decided about."""
