"""The parts of our engine's forward pass: fused layers, attention over rows, rotation, adapters, graphs."""
