"""the instant of a request's first token, and histograms over ended requests"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column, without a default so that no row is rewritten, and the table."""
    op.add_column("requests", sa.Column("first_token_at", TIMESTAMP(timezone=True), nullable=True))
    op.create_table(
        "histogram_buckets",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("tenant_class", sa.Text(), primary_key=True),
        sa.Column("tier", sa.Text(), primary_key=True),
        sa.Column("bucket", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Float(), nullable=False),
    )


def downgrade() -> None:
    """Takes both away again; the histograms begin anew after the next upgrade."""
    op.drop_table("histogram_buckets")
    op.drop_column("requests", "first_token_at")
    op.execute("delete from service_state where name = 'histograms'")
