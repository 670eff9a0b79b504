"""figures for operators: sends of batches, unreachable workers, heartbeats of processes, the installation"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INSTANT = postgresql.TIMESTAMP(timezone=True)
NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    """Add the columns and the table, and draw the installation's name."""
    op.add_column("batches", sa.Column("sends", sa.Integer(), server_default="1", nullable=False))
    op.add_column("workers", sa.Column("not_consuming_since", INSTANT, nullable=True))
    op.create_index(
        "requests_answered_without_batch",
        "requests",
        ["finished_at"],
        postgresql_where=sa.text("batch_id is null and status in ('completed', 'incomplete')"),
    )
    op.create_table(
        "process_heartbeats",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("started_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("heartbeat_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("clock_ahead_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "instance"),
    )
    op.execute(
        """insert into service_state (name, value) values
        ('installation', jsonb_build_object('id', substr(replace(gen_random_uuid()::text, '-', ''), 1, 12)))"""
    )


def downgrade() -> None:
    """Take them away again."""
    op.execute("delete from service_state where name = 'installation'")
    op.drop_table("process_heartbeats")
    op.drop_index("requests_answered_without_batch", "requests")
    op.drop_column("workers", "not_consuming_since")
    op.drop_column("batches", "sends")
