"""why the steps of a process fail"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the error to the heartbeat of a process."""
    op.execute("alter table process_heartbeats add column failure text")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("alter table process_heartbeats drop column failure")
