"""what the layers with a window of a worker's model hold"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns."""
    op.execute("alter table workers add column windowed_bytes bigint not null default 0")
    op.execute("alter table workers add column window_tokens bigint not null default 0")


def downgrade() -> None:
    """Takes them away again."""
    op.execute("alter table workers drop column window_tokens")
    op.execute("alter table workers drop column windowed_bytes")
