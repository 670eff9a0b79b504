"""Every policy, and other ways to serve the same API, over the real stack."""
