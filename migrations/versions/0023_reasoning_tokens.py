"""how many tokens of an answer are thinking"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; answers that were stored before do not know it."""
    op.execute("alter table requests add column reasoning_tokens integer")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("alter table requests drop column reasoning_tokens")
