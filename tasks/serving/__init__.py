"""The worker's process: batches under leases, the engine's thread, results into the database."""
