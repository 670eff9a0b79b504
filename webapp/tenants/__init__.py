"""Who may call what, how much a tenant may send, and what it has used."""
