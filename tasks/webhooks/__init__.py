"""Sends the events that tenants have endpoints for: claims, signs, delivers, tries again."""
