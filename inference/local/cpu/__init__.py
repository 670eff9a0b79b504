"""What a worker on a CPU chooses when it loads its model: the number format and the number of threads."""
