"""an index of ended requests that are not to be stored but still have texts"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add an index that is empty wherever clients let their requests be stored."""
    op.create_index(
        "requests_unstored",
        "requests",
        ["finished_at"],
        postgresql_where=sa.text("body ->> 'store' = 'false' and input <> ''"),
    )


def downgrade() -> None:
    """Take it away again."""
    op.drop_index("requests_unstored", "requests")
