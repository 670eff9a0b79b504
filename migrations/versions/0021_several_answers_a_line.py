"""a row of bulk_lines for each answer of a line, and how long a bulk job's results are kept"""

from alembic import op

revision = "0021"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Numbers the answers of a line, and adds the seconds after which results expire to each job."""
    op.execute("alter table bulk_jobs add column output_expires_s integer")
    op.execute("alter table bulk_lines add column choice smallint not null default 0")
    op.execute("alter table bulk_lines drop constraint bulk_lines_pkey, add primary key (job_id, line, choice)")


def downgrade() -> None:
    """Takes both away; of a line with several answers only the first is left."""
    op.execute("delete from bulk_lines where choice > 0")
    op.execute("alter table bulk_lines drop constraint bulk_lines_pkey, add primary key (job_id, line)")
    op.execute("alter table bulk_lines drop column choice")
    op.execute("alter table bulk_jobs drop column output_expires_s")
