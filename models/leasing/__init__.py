"""Leases of batches: takes and renews them, writes results under them, registers workers and requeues requests."""
