"""adapters beside a model"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the model whose workers serve a request, where it names an adapter, and the adapters of workers."""
    op.execute("alter table requests add column base text")
    op.execute("alter table workers add column adapters text[] not null default '{}'")


def downgrade() -> None:
    """Drops both; a queued request for an adapter waits for a worker of that name."""
    op.execute("alter table workers drop column adapters")
    op.execute("alter table requests drop column base")
