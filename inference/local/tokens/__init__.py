"""Chooses the tokens that a pass computes, and the token that each row gets next."""
