"""rows sent ahead: how many rows may run when a batch joins"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column without a default, so that no row is rewritten."""
    op.add_column("batches", sa.Column("most_rows", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Take it away again."""
    op.drop_column("batches", "most_rows")
