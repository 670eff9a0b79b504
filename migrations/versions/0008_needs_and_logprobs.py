"""what a request needs its engine to be able to do, the log probabilities of its answer, engines with a prefix cache"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("requests", sa.Column("needs", sa.ARRAY(sa.Text()), server_default="{}", nullable=False))
    op.add_column("requests", sa.Column("logprobs", postgresql.JSONB(), nullable=True))
    op.add_column("workers", sa.Column("prefix_cache", sa.Boolean(), server_default="false", nullable=False))


def downgrade() -> None:
    """Take them away again."""
    op.drop_column("workers", "prefix_cache")
    op.drop_column("requests", "logprobs")
    op.drop_column("requests", "needs")
