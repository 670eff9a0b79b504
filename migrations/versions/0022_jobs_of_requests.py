"""the bulk job of a request, among whose lines it takes its turn"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; lines that were queued before count as one job of their tenant."""
    op.execute("alter table requests add column job_id text")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("alter table requests drop column job_id")
