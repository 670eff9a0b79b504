"""How processes reach Postgres, what its schema is, and what its errors say."""
