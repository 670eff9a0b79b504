"""Our own engine: a decode loop over a transformers causal language model."""
