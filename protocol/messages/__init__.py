"""/v1/messages, Anthropic's API: bodies, answers and errors."""
