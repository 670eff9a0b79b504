"""/v1/responses: bodies, objects, conversations."""
