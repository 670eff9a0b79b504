"""The database: SQLAlchemy tables, sessions and named queries. It holds no neural networks."""
