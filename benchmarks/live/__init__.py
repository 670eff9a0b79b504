"""Every policy, and peers that serve the same API in other ways, on the real stack."""
