"""What decisions, requests and steps cost outside of the engine, in CPU seconds."""
