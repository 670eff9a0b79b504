"""Which leases are still held."""
