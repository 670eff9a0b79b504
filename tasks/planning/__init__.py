"""The planner's process: what waits, what the fleet is doing, what is sent where."""
