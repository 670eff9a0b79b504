"""Vectors of texts and scores of pairs, computed by sentence-transformers models behind the engines' interface."""
