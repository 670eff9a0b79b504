"""workers with a remote engine: how it counts memory, how many rows it takes, what it lacks"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("workers", sa.Column("paged", sa.Boolean(), server_default="false", nullable=False))
    op.add_column("workers", sa.Column("block_tokens", sa.Integer(), server_default="1", nullable=False))
    op.add_column("workers", sa.Column("lacks", sa.ARRAY(sa.Text()), server_default="{}", nullable=False))
    op.add_column("workers", sa.Column("max_rows", sa.Integer(), nullable=True))
    op.add_column("workers", sa.Column("fault", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take them away again."""
    for column in ("fault", "max_rows", "lacks", "block_tokens", "paged"):
        op.drop_column("workers", column)
