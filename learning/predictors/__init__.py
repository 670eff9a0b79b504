"""One file for each generation length predictor, and what they share."""
