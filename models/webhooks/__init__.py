"""Webhook endpoints, and deliveries of events to them."""
