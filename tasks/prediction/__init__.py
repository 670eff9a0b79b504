"""The predictor's process: lengths for requests that nobody has predicted yet."""
