"""Text and numbers in, numbers out: generation length prediction, serving time estimation, continuous learning."""
