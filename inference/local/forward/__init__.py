"""What a forward pass of our engine computes: fused layers, attention over rows, windows, adapters."""
