"""The planner's process: reads the queue and the fleet, and decides which batch goes to which worker."""
