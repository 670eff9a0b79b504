"""Token ids in, token ids out: the engine and the small bundled model."""
