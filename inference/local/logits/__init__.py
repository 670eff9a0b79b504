"""What is done to logits before a token is taken: formats, penalties; and the log probabilities in them."""
