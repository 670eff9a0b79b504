"""The control plane under a seeded scheduler: the product's objects, a real Postgres, one thread, a simulated clock."""
