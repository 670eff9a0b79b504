"""the bulk job whose failed lines another one retries"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column."""
    op.execute("alter table bulk_jobs add column parent_id text")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("alter table bulk_jobs drop column parent_id")
