"""the interval of the ETA given at submission, and the forecast behind it"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TIMESTAMP

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; none has a default, so that no row is rewritten."""
    op.add_column("requests", sa.Column("eta_low_at", TIMESTAMP(timezone=True), nullable=True))
    op.add_column("requests", sa.Column("eta_high_at", TIMESTAMP(timezone=True), nullable=True))
    op.add_column("requests", sa.Column("forecast_s", sa.Float(), nullable=True))


def downgrade() -> None:
    """Take them away again."""
    for column in ("forecast_s", "eta_high_at", "eta_low_at"):
        op.drop_column("requests", column)
