"""a row that says who leads; workers, batches and models that were set aside"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0001"
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
    op.add_column("batches", sa.Column("resends", sa.Integer(), server_default="0", nullable=False))
    op.add_column("workers", sa.Column("withheld_until", INSTANT, nullable=True))
    op.add_column("workers", sa.Column("withheld_reason", sa.Text(), nullable=True))
    op.add_column("model_versions", sa.Column("unreadable", sa.Text(), nullable=True))


def downgrade() -> None:
    """Remove them."""
    op.drop_column("model_versions", "unreadable")
    op.drop_column("workers", "withheld_reason")
    op.drop_column("workers", "withheld_until")
    op.drop_column("batches", "resends")
    op.drop_table("leaderships")
