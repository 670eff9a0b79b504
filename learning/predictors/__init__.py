"""One file for each generation length predictor, and what several of them use."""
