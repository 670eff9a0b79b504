"""rate counts: what each API key sent in the present window, over all web processes"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. It is unlogged: a crash of the server empties it, which only begins the windows again."""
    op.create_table(
        "rate_counts",
        sa.Column("key_id", sa.Integer(), nullable=False),
        sa.Column("window_start", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key_id"),
        prefixes=["UNLOGGED"],
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("rate_counts")
