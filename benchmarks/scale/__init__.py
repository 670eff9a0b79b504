"""The control plane with many workers: real worker processes whose engines keep a published machine's pace."""
