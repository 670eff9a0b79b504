"""the bulk job whose failed lines another one retries; an index of the requests of paused jobs"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column and the index."""
    op.execute("alter table bulk_jobs add column parent_id text")
    op.execute("create index requests_held on requests (planner_epoch) where status = 'queued' and held")


def downgrade() -> None:
    """Takes both away again."""
    op.execute("drop index requests_held")
    op.execute("alter table bulk_jobs drop column parent_id")
