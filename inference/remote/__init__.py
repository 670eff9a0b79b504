"""Other engines: HTTP servers behind the interface of our own engine; imports no torch."""
