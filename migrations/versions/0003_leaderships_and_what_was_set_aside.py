"""rows for leaders; columns for workers, batches and models that were set aside"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INSTANT = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    """Add the table and the columns."""
    op.create_table(
        "leaderships",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.add_column("workers", sa.Column("stopping", sa.Boolean(), server_default="false", nullable=False))
    op.add_column("model_versions", sa.Column("unreadable", sa.Text(), nullable=True))


def downgrade() -> None:
    """Remove them."""
    op.drop_column("model_versions", "unreadable")
    op.drop_column("workers", "stopping")
    op.drop_table("leaderships")
