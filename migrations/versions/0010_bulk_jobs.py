"""files, and the bulk jobs that serve them line by line (/v1/files, /v1/batches)"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

UNENDED = sa.text("status in ('validating', 'in_progress', 'finalizing', 'cancelling')")
KEYED = sa.text("idempotency_key is not null")
REQUESTED = sa.text("request_id is not null")


def instant(name: str, *, now: bool = False, nullable: bool = False) -> sa.Column[object]:
    """A column with an instant."""
    default = sa.text("clock_timestamp()") if now else None
    return sa.Column(name, TIMESTAMP(timezone=True), server_default=default, nullable=nullable)


def count(name: str, default: str | None = "0") -> sa.Column[int]:
    """A column with a number."""
    return sa.Column(name, sa.Integer(), server_default=default, nullable=False)


UNPREDICTED = sa.text("status = 'queued' and predicted_tokens is null")


def upgrade() -> None:
    """Create the tables; let predictors find requests by priority first, so that nobody waits behind a bulk job."""
    op.drop_index("requests_unpredicted", "requests")
    op.create_index(
        "requests_unpredicted", "requests", [sa.text("priority desc"), "arrived_at"], postgresql_where=UNPREDICTED
    )
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        count("lines"),
        count("last_line"),
        instant("created_at", now=True),
        instant("expires_at", nullable=True),
        instant("deleted_at", nullable=True),
    )
    kept = sa.text("deleted_at is null")
    op.create_index("files_by_tenant", "files", ["tenant", "created_at", "id"], postgresql_where=kept)
    op.create_index("files_deleted", "files", ["deleted_at"], postgresql_where=sa.text("deleted_at is not null"))
    op.create_index("files_in_upload", "files", ["created_at"], postgresql_where=sa.text("bytes is null"))
    op.create_index("files_expiring", "files", ["expires_at"], postgresql_where=sa.text("expires_at is not null"))
    op.create_table(
        "file_chunks",
        sa.Column("file_id", sa.Text(), sa.ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("first_line", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
    )
    op.execute("alter table file_chunks alter column data set storage external")
    op.create_table(
        "bulk_jobs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("idempotency_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("metadata", JSONB(), nullable=True),
        sa.Column("status", sa.String(16), server_default="validating", nullable=False),
        count("lines", None),
        count("last_line", None),
        count("next_line", "1"),
        count("queued"),
        count("completed"),
        count("failed"),
        sa.Column("errors", JSONB(), nullable=True),
        sa.Column("output_file_id", sa.Text(), nullable=True),
        sa.Column("error_file_id", sa.Text(), nullable=True),
        instant("created_at", now=True),
        instant("expires_at"),
        *(
            instant(f"{state}_at", nullable=True)
            for state in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        ),
        instant("fed_at", now=True),
        instant("look_at", now=True),
    )
    op.create_index("bulk_jobs_by_tenant", "bulk_jobs", ["tenant", "created_at", "id"])
    op.create_index("bulk_jobs_unended", "bulk_jobs", ["look_at"], postgresql_where=UNENDED)
    op.create_index("bulk_jobs_of_file", "bulk_jobs", ["input_file_id"], postgresql_where=UNENDED)
    op.create_index(
        "bulk_jobs_idempotency", "bulk_jobs", ["tenant", "idempotency_key"], unique=True, postgresql_where=KEYED
    )
    op.create_table(
        "bulk_lines",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("bulk_jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("line", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("error", JSONB(), nullable=True),
    )
    op.create_index("bulk_lines_names", "bulk_lines", ["job_id", "custom_id"], unique=True, postgresql_where=REQUESTED)
    op.create_index("bulk_lines_requests", "bulk_lines", ["request_id"], unique=True, postgresql_where=REQUESTED)


def downgrade() -> None:
    """Drop them with what is in them; the requests stay."""
    op.drop_index("requests_unpredicted", "requests")
    op.create_index("requests_unpredicted", "requests", ["arrived_at"], postgresql_where=UNPREDICTED)
    for table in ("bulk_lines", "bulk_jobs", "file_chunks", "files"):
        op.drop_table(table)
