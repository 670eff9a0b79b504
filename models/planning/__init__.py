"""The planner's reads and writes, and the queue positions and ETAs that clients get."""
