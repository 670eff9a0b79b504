"""Policies round another policy: requests served apart, abilities of workers, tenants' shares, background requests."""
