"""The background processes: predict, plan, serve, train, upkeep. They carry out decisions; Postgres keeps all state."""
