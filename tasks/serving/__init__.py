"""The worker's process: takes batches under leases, serves them on one engine, writes the results to the database."""
