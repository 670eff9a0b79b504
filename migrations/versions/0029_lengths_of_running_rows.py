"""a worker's predictions of its running rows' lengths"""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column, without predictions."""
    op.execute("alter table workers add column row_lengths jsonb not null default '{}'")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("alter table workers drop column row_lengths")
