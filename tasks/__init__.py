"""Celery: predict, plan, serve, train, upkeep. Carries out what `scheduling` decides; holds no truth of its own."""
