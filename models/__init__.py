"""The database: SQLAlchemy tables, sessions and named queries. Never a neural network."""
