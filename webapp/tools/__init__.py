"""Functions that an answer may call: their definitions, and the calls in answers."""
