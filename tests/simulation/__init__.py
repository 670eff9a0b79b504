"""The control plane under a seeded scheduler: the product's own objects, a real Postgres, one thread, a simulated clock."""
