"""What belongs to a tenant: its settings, the scopes of its keys, its usage."""
