"""Our engine beside those that users of transformers have."""
