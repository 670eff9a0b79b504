"""Commands about tenants: their keys, limits, usage and webhooks."""
