"""Runs the migrations in `versions/` on the connection that `models.schema_upgrade` gives it."""

from alembic import context

from models import promise_tables as promise_tables  # the metadata has a table once its module is imported
from models import service_tables as service_tables
from models.bulk import bulk_tables as bulk_tables
from models.tables import Base
from models.tenants import tenant_tables as tenant_tables
from models.webhooks import webhook_tables as webhook_tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
