"""The inputs of services and simulations: requests, workloads, filled databases, changed models."""
