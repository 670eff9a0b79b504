"""What the planner reads and writes, and what clients are told of it."""
