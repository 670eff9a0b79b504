"""the tokens that a worker's running rows share"""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column."""
    op.execute("alter table workers add column shared_tokens bigint not null default 0")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("alter table workers drop column shared_tokens")
