"""Pure decisions: what to serve next, together with what, and where. No clock, no I/O, no randomness of its own."""
