"""what the dashboard reads and what operators do: samples, sessions, audit; draining workers and their versions"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INSTANT = TIMESTAMP(timezone=True)
NOW = sa.text("clock_timestamp()")
# What a closed minute keeps of its samples; null in minutes that were closed before.
OF_A_MINUTE = (
    ("backlog", sa.Integer()),
    ("in_flight", sa.Integer()),
    ("oldest_s", sa.Float()),
    ("answer_tokens", sa.BigInteger()),
    ("response_p99_s", sa.Float()),
    ("predicted", sa.Integer()),
    ("squared_error", sa.Float()),
    ("covered", sa.Integer()),
    ("tau", sa.Float()),
    ("promised", sa.Integer()),
    ("eta_error_s", sa.Float()),
    ("eta_kept", sa.Integer()),
    ("estimated", sa.Integer()),
    ("estimate_error_s", sa.Float()),
    ("served_s", sa.Float()),
)


def upgrade() -> None:
    """Make the tables, and add columns without a default, so that no row is rewritten."""
    op.create_table(
        "samples",
        sa.Column("at", INSTANT, primary_key=True),
        sa.Column("backlog", sa.Integer(), nullable=False),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("oldest_s", sa.Float()),
        sa.Column("answers", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("answer_tokens", sa.BigInteger(), nullable=False),
        sa.Column("response_p50_s", sa.Float()),
        sa.Column("response_p95_s", sa.Float()),
        sa.Column("response_p99_s", sa.Float()),
        sa.Column("predicted", sa.Integer(), nullable=False),
        sa.Column("squared_error", sa.Float(), nullable=False),
        sa.Column("covered", sa.Integer(), nullable=False),
        sa.Column("tau", sa.Float()),
        sa.Column("promised", sa.Integer(), nullable=False),
        sa.Column("eta_error_s", sa.Float(), nullable=False),
        sa.Column("eta_kept", sa.Integer(), nullable=False),
        sa.Column("estimated", sa.Integer(), nullable=False),
        sa.Column("estimate_error_s", sa.Float(), nullable=False),
        sa.Column("served_s", sa.Float(), nullable=False),
    )
    op.create_table(
        "operator_sessions",
        sa.Column("sha256", sa.LargeBinary(), primary_key=True),
        sa.Column("key_id", sa.Integer()),
        sa.Column("password_sha256", sa.LargeBinary()),
        sa.Column("created_at", INSTANT, nullable=False, server_default=NOW),
        sa.Column("expires_at", INSTANT, nullable=False),
    )
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("at", INSTANT, nullable=False, server_default=NOW),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("details", JSONB(), nullable=False),
    )
    op.create_index("audit_entries_by_time", "audit_entries", ["at"])
    for name, kind in OF_A_MINUTE:
        op.add_column("minutes", sa.Column(name, kind, nullable=True))
    op.add_column("workers", sa.Column("version", sa.Text(), nullable=True))
    op.add_column("workers", sa.Column("drained_at", INSTANT, nullable=True))
    op.create_index(
        "batches_out_of_memory",
        "batches",
        ["finished_at"],
        postgresql_where=sa.text("status = 'out_of_memory' and finished_at is not null"),
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_index("batches_out_of_memory", "batches")
    op.drop_column("workers", "drained_at")
    op.drop_column("workers", "version")
    for name, _ in reversed(OF_A_MINUTE):
        op.drop_column("minutes", name)
    for table in ("audit_entries", "operator_sessions", "samples"):
        op.drop_table(table)
