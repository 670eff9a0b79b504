"""The parts of the simulated world: engines, workers and the trace; `scheduling.simulation.simulator` runs them."""
