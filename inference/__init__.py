"""Token ids in, token ids out: the LLM engines and the small bundled model."""
