"""The parts of the simulated world: engines, workers and the trace; `scheduling.simulator` runs them."""
