"""Length predictors that learn from nothing on a real model's own answers (Magnus Fig. 14)."""
