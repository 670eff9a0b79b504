"""Leases of batches: taking, renewing and writing results under them; workers and requests that come back."""
