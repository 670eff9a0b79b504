"""Alembic: the schema's migrations, one file each; run by `models.schema_upgrade.upgrade`."""
