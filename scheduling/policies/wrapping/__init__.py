"""Policies around another policy: what has to be served apart, tenants' shares, background requests."""
