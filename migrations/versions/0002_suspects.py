"""suspects: requests that an engine was serving when it failed, and those that outgrew a worker's memory"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("requests", sa.Column("suspect_group", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("suspected", sa.Integer(), server_default="0", nullable=False))
    op.add_column("requests", sa.Column("outgrew_tokens", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    """Drop them: suspects are then served as any other request."""
    for column in ("suspect_group", "suspected", "outgrew_tokens"):
        op.drop_column("requests", column)
