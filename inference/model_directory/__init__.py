"""Reads the files of a model directory: templates, tokenizer, defaults, the number of weights. Imports no torch."""
