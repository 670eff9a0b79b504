"""How a worker serves a batch: its lease, its job, and the engine's thread that runs it."""
