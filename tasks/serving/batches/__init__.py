"""Serves a worker's batches: their leases, their jobs, and the engine's thread that runs them."""
