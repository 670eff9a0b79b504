"""/v1/messages, Anthropic's API: bodies, objects and events."""
