"""The simulator: engines, workers and a fleet in virtual time; `scheduling.simulation.simulator` has the main loop."""
