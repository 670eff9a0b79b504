"""The predictor's process: predicts the generation length of every new request."""
