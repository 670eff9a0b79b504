"""how many lines of a bulk job a step reads, and how many steps tried its next line"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds both numbers to each job."""
    op.execute("alter table bulk_jobs add column step_lines smallint not null default 500")
    op.execute("alter table bulk_jobs add column tries smallint not null default 0")


def downgrade() -> None:
    """Takes the columns away again."""
    op.execute("alter table bulk_jobs drop column step_lines, drop column tries")
