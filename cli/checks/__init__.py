"""What `magnus doctor` and the start of a service find missing, each with its remedy."""
