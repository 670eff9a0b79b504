"""bulk jobs that are paused or get another end, which their waiting requests follow"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns; the waiting lines of present jobs keep the end that they have."""
    op.execute("alter table requests add column held boolean not null default false")
    op.execute("alter table bulk_jobs add column paused_at timestamptz")
    op.execute("alter table bulk_jobs add column untold boolean not null default false")
    op.execute("alter table bulk_lines add column deadline_at timestamptz")


def downgrade() -> None:
    """Takes the columns away again; held requests wait like others."""
    op.execute("alter table bulk_lines drop column deadline_at")
    op.execute("alter table bulk_jobs drop column untold, drop column paused_at")
    op.execute("update requests set planner_epoch = 0 where held and status = 'queued'")
    op.execute("alter table requests drop column held")
