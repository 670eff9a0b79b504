"""The workload of `magnus demo`, the service that it starts, its progress and its figures."""
