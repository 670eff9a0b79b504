"""models that a worker can load, the order to change to one, and the model of each batch"""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns."""
    op.execute("alter table workers add column loadable jsonb not null default '{}'")
    op.execute("alter table workers add column wanted_model text")
    op.execute("alter table workers add column model_changes integer not null default 0")
    op.execute("alter table batches add column model text")


def downgrade() -> None:
    """Takes them away again."""
    op.execute("alter table batches drop column model")
    op.execute("alter table workers drop column model_changes")
    op.execute("alter table workers drop column wanted_model")
    op.execute("alter table workers drop column loadable")
