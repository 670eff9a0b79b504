"""Compares our engine with those of transformers and vLLM, and with BATON's baselines."""
