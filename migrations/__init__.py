"""Alembic: the database's history, one file a step; run by `models.schema_upgrade.upgrade`."""
