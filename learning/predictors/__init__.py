"""One file for each generation length predictor, and files that several of them share."""
