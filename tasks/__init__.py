"""The Celery processes: predict, plan, serve, train, upkeep. They carry out what `scheduling` decides; Postgres keeps all state."""
