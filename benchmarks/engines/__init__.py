"""Our engine compared with those of transformers and with BATON's baselines."""
