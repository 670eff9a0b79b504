"""the service tier of a bulk job's lines"""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; lines are background work, as before."""
    op.execute("alter table bulk_jobs add column service_tier text not null default 'flex'")


def downgrade() -> None:
    """Takes it away again; lines that wait keep the tier that they have."""
    op.execute("alter table bulk_jobs drop column service_tier")
