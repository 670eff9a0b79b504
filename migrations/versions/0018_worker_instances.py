"""the process that has a worker's name"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the process, as host:process id."""
    op.execute("alter table workers add column instance text")


def downgrade() -> None:
    """Takes the column away again."""
    op.execute("alter table workers drop column instance")
