"""how many tokens of a prompt were not computed, because an earlier prompt began with them"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; answers that were stored before do not know it."""
    op.execute("alter table requests add column cached_tokens integer")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("alter table requests drop column cached_tokens")
