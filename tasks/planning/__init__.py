"""The planner's process: reads what waits and what the fleet is doing, and decides which batch goes to which worker."""
