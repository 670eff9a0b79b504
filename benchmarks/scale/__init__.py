"""Measures the control plane with many workers: real processes whose engines keep a published machine's pace."""
