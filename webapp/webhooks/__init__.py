"""The API of webhooks: endpoints, their secrets, their deliveries."""
