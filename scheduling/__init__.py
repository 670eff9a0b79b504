"""Pure decisions: what to serve next, in which batch, on which worker. No clock, no I/O, no randomness of its own."""
