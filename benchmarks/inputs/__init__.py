"""What a service or a simulation is given: requests, workloads, filled databases, changed models."""
