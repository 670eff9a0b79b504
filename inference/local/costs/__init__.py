"""What steps cost: counters of what they computed, the learned costs of a pass, trials of numbers of threads."""
