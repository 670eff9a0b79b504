"""the first tables"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INSTANT = postgresql.TIMESTAMP(timezone=True)
NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    """Create the tables."""
    op.execute(sa.schema.CreateSequence(sa.Sequence("planner_epochs")))
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "assigned",
                "running",
                "finished",
                "out_of_memory",
                "lost",
                name="batchstatus",
                native_enum=False,
                length=16,
            ),
            server_default="assigned",
            nullable=False,
        ),
        sa.Column("joins", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("sealed", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("preempts", sa.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("predicted_generation_length", sa.Integer(), nullable=False),
        sa.Column("iteration_limit", sa.Integer(), nullable=True),
        sa.Column("estimated_s", sa.Double(), nullable=False),
        sa.Column("assigned_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("sent_at", INSTANT, nullable=True),
        sa.Column("fence", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_until", INSTANT, nullable=True),
        sa.Column("progress_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.Column("serving_s", sa.Double(), nullable=True),
        sa.Column("iterations", sa.Integer(), nullable=True),
        sa.Column("generation_length", sa.Integer(), nullable=True),
        sa.Column("valid_tokens", sa.Integer(), nullable=True),
        sa.Column("pad_tokens", sa.Integer(), nullable=True),
        sa.Column("invalid_tokens", sa.Integer(), nullable=True),
        sa.Column("peak_kv_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("batches_finished", "batches", ["finished_at"], postgresql_where=sa.text("finished_at is not null"))
    op.create_index(
        "batches_open", "batches", ["worker"], postgresql_where=sa.text("status in ('assigned', 'running')")
    )
    op.create_table(
        "minutes",
        sa.Column("minute", INSTANT, nullable=False),
        sa.Column("arrived", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("incomplete", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("response_p50_s", sa.Double(), nullable=True),
        sa.Column("response_p95_s", sa.Double(), nullable=True),
        sa.Column("response_max_s", sa.Double(), nullable=True),
        sa.Column("batches", sa.Integer(), nullable=False),
        sa.Column("batched", sa.Integer(), nullable=False),
        sa.Column("valid_tokens", sa.BigInteger(), nullable=False),
        sa.Column("pad_tokens", sa.BigInteger(), nullable=False),
        sa.Column("invalid_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("minute"),
    )
    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("stored", sa.LargeBinary(), nullable=False),
        sa.Column("scores", postgresql.JSONB(), nullable=False),
        sa.Column("data", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("version"),
    )
    op.create_index(
        "model_versions_active", "model_versions", ["kind"], unique=True, postgresql_where=sa.text("active")
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("idempotency_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("application", sa.Text(), nullable=False),
        sa.Column("instructions", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("body", postgresql.JSONB(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("limit_tokens", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("deadline_at", INSTANT, nullable=True),
        sa.Column(
            "status",
            sa.Enum(
                "queued",
                "in_progress",
                "completed",
                "incomplete",
                "failed",
                "cancelled",
                name="requeststatus",
                native_enum=False,
                length=16,
            ),
            server_default="queued",
            nullable=False,
        ),
        sa.Column("arrived_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("predicted_tokens", sa.Integer(), nullable=True),
        sa.Column("predicted_upper_tokens", sa.Integer(), nullable=True),
        sa.Column("predictor_version", sa.Text(), nullable=True),
        sa.Column("planner_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("eta_at", INSTANT, nullable=True),
        sa.Column("batch_id", sa.BigInteger(), nullable=True),
        sa.Column("sealed_group", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cancel_requested_at", INSTANT, nullable=True),
        sa.Column("generated_ids", sa.ARRAY(sa.Integer()), server_default="{}", nullable=False),
        sa.Column("output_text", sa.Text(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.CheckConstraint("(status in ('queued', 'in_progress')) = (finished_at is null)", name="finished_iff_final"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("requests_by_application", "requests", ["tenant", "application", "arrived_at", "id"], unique=False)
    op.create_index("requests_by_arrival", "requests", ["arrived_at", "id"])
    op.create_index(
        "requests_gone_wrong",
        "requests",
        ["status", "arrived_at", "id"],
        postgresql_where=sa.text("status in ('incomplete', 'failed', 'cancelled')"),
    )
    op.create_index("requests_by_tenant", "requests", ["tenant", "arrived_at", "id"], unique=False)
    op.create_index(
        "requests_finished", "requests", ["finished_at"], postgresql_where=sa.text("finished_at is not null")
    )
    op.create_index(
        "requests_deadlines",
        "requests",
        ["deadline_at"],
        postgresql_where=sa.text("status = 'queued' and deadline_at is not null"),
    )
    op.create_index("requests_by_status", "requests", ["tenant", "status", "arrived_at", "id"])
    op.create_index(
        "requests_idempotency",
        "requests",
        ["tenant", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key is not null"),
    )
    op.create_index("requests_of_batch", "requests", ["batch_id"], postgresql_where=sa.text("status = 'in_progress'"))
    op.create_index("requests_unfed", "requests", ["planner_epoch"], postgresql_where=sa.text("status = 'queued'"))
    op.create_index(
        "requests_unpredicted",
        "requests",
        ["arrived_at"],
        postgresql_where=sa.text("status = 'queued' and predicted_tokens is null"),
    )
    op.create_index(
        "requests_waiting", "requests", ["arrived_at"], postgresql_where=sa.text("status in ('queued', 'in_progress')")
    )
    op.create_table(
        "service_state",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", postgresql.JSONB(), nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("theta_bytes", sa.BigInteger(), nullable=False),
        sa.Column("delta_bytes", sa.BigInteger(), nullable=False),
        sa.Column("curves", postgresql.JSONB(), nullable=True),
        sa.Column("started_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("heartbeat_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("stopped_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Drop the tables."""
    op.execute(sa.schema.DropSequence(sa.Sequence("planner_epochs")))
    op.drop_table("workers")
    op.drop_table("service_state")
    op.drop_table("requests")
    op.drop_table("model_versions")
    op.drop_table("minutes")
    op.drop_table("batches")
    op.drop_table("api_keys")
