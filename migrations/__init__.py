"""Alembic: the schema's migrations, one file each; run by `models.connections.schema_upgrade.upgrade`."""
