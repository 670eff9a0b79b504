"""The tables of files and bulk jobs. The bytes of an uploaded file are stored in chunks of whole lines.

The bytes of results are not stored: they are made from the job's lines and their requests whenever they are read
(`protocol/bulk/result_lines.py`).
"""

import enum
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, SmallInteger
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.connections.sql import text
from models.tables import NOW, Base, Tier, _enum
from scheduling.request import ServiceTier


class FilePurpose(enum.StrEnum):
    """The content of a file: `batch` has the lines of an upload, `output` and `error` the results of a bulk job."""

    batch = "batch"
    output = "output"
    error = "error"


class BulkStatus(enum.StrEnum):
    """States of OpenAI's Batch API; `failed`, `completed`, `expired` and `cancelled` are final."""

    validating = "validating"
    failed = "failed"
    in_progress = "in_progress"
    finalizing = "finalizing"
    completed = "completed"
    expired = "expired"
    cancelling = "cancelling"
    cancelled = "cancelled"


ENDED = (BulkStatus.failed, BulkStatus.completed, BulkStatus.expired, BulkStatus.cancelled)
# Calls that generate no text. Other workers serve them, so that forecasts from text models' workers do not hold.
POOLING_ENDPOINTS = ("/v1/embeddings", "/v1/rerank", "/v1/score")
# The model whose workers serve the first of a job's lines that were read; null until then.
MODEL_OF_LINES = """(
    select coalesce(r.base, r.model) from bulk_lines l join requests r on r.id = l.request_id
    where l.job_id = bulk_jobs.id order by l.line limit 1
)"""
WITHIN_BUDGET = "(budget is null or gpu_s < (budget->>'gpu_s')::float8)"  # as `BulkJob.budget_spent`
# The predicate of partial indexes; a query must repeat it word by word to use them.
UNENDED = "status in ('validating', 'in_progress', 'finalizing', 'cancelling')"


class StoredFile(Base):
    """A tenant's file. While it is being uploaded it has no size and no call shows it."""

    __tablename__ = "files"

    id: Mapped[str] = mapped_column(primary_key=True)  # file-<32 hex digits>
    tenant: Mapped[str]
    purpose: Mapped[FilePurpose] = mapped_column(_enum(FilePurpose))
    filename: Mapped[str]
    job_id: Mapped[str | None]  # the bulk job whose results it holds
    bytes: Mapped[int | None] = mapped_column(BigInteger)
    lines: Mapped[int] = mapped_column(server_default="0")  # lines that are not blank
    last_line: Mapped[int] = mapped_column(server_default="0")  # number of the last line; the first is 1, blanks count
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime | None]
    # when its tenant deleted it; its chunks are deleted once no bulk job reads them any more
    deleted_at: Mapped[datetime | None]

    __table_args__ = (
        Index("files_by_tenant", "tenant", "created_at", "id", postgresql_where=text("deleted_at is null")),
        Index("files_deleted", "deleted_at", postgresql_where=text("deleted_at is not null")),
        Index("files_in_upload", "created_at", postgresql_where=text("bytes is null")),
        Index("files_expiring", "expires_at", postgresql_where=text("expires_at is not null")),
    )


class FileChunk(Base):
    """Some whole lines of an uploaded file."""

    __tablename__ = "file_chunks"

    file_id: Mapped[str] = mapped_column(ForeignKey("files.id", ondelete="CASCADE"), primary_key=True)
    first_line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # not compressed: compression would take Postgres longer than storing
    data: Mapped[bytes] = mapped_column(LargeBinary)


class BulkJob(Base):
    """One batch of OpenAI's Batch API."""

    __tablename__ = "bulk_jobs"

    id: Mapped[str] = mapped_column(primary_key=True)  # batch_<32 hex digits>
    tenant: Mapped[str]
    idempotency_key: Mapped[str | None]
    idempotency_sha256: Mapped[bytes | None] = mapped_column(LargeBinary)
    endpoint: Mapped[str]
    input_file_id: Mapped[str]
    parent_id: Mapped[str | None]  # the job whose failed lines it retries
    completion_window: Mapped[str]
    # the client's labels; the attribute cannot be called `metadata`, which SQLAlchemy uses itself
    labels: Mapped[dict[str, Any] | None] = mapped_column("metadata", JSONB(none_as_null=True))
    status: Mapped[BulkStatus] = mapped_column(_enum(BulkStatus), server_default="validating")
    lines: Mapped[int]  # lines of the input file that are not blank
    last_line: Mapped[int]  # number of the input file's last line
    next_line: Mapped[int] = mapped_column(server_default="1")  # number of the first line that was not read yet
    queued: Mapped[int] = mapped_column(server_default="0")  # number of lines that became requests
    completed: Mapped[int] = mapped_column(server_default="0")
    failed: Mapped[int] = mapped_column(server_default="0")
    errors: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True))  # set if no line of the job is valid
    # `done_tokens`: tokens of its ended requests with prompts; `left_work`: the fields of `deadlines.Work` for the rest
    done_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    left_work: Mapped[dict[str, int] | None] = mapped_column(JSONB(none_as_null=True))
    usage: Mapped[dict[str, int] | None] = mapped_column(JSONB(none_as_null=True))  # tokens of its answered lines
    forecast_s: Mapped[float | None]  # what was forecast at its creation for the time until its end
    expected_gpu_s: Mapped[float | None]  # what was expected at its creation for `gpu_s`
    output_file_id: Mapped[str | None]
    error_file_id: Mapped[str | None]
    output_expires_s: Mapped[int | None]  # seconds after the job's end at which its results expire
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    # what its lines have used, without entries of the usage that are not folded yet
    gpu_s: Mapped[float] = mapped_column(server_default="0")
    # {amount, unit, gpu_s}: what the client allows, and the GPU-seconds for which a price stands
    budget: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    service_tier: Mapped[ServiceTier] = mapped_column(Tier, server_default="flex")  # of its lines, never priority
    # whether some of its unfinished requests lack its pause, end or tier; the process `chores` then changes them
    untold: Mapped[bool] = mapped_column(server_default="false")
    fed_at: Mapped[datetime] = mapped_column(server_default=NOW)  # since when its lines may be read: jobs take turns
    step_lines: Mapped[int] = mapped_column(SmallInteger, server_default="500")  # the most lines of its next step
    tries: Mapped[int] = mapped_column(SmallInteger, server_default="0")  # steps that began at `next_line`
    look_at: Mapped[datetime] = mapped_column(server_default=NOW)  # when the job's ended lines are counted next
    deleted_at: Mapped[datetime | None]  # when its deletion began, which hides it and deletes its lines first

    @property
    def ended_at(self) -> datetime | None:
        """When the job ended; None before."""
        ends = (self.completed_at, self.failed_at, self.expired_at, self.cancelled_at)
        return next((at for at in ends if at is not None), None)

    @property
    def budget_spent(self) -> bool:
        """Whether its folded usage has reached its budget."""
        return self.budget is not None and self.gpu_s >= self.budget["gpu_s"]

    __table_args__ = (
        Index("bulk_jobs_by_tenant", "tenant", "created_at", "id"),
        Index("bulk_jobs_unended", "look_at", postgresql_where=text(UNENDED)),
        Index("bulk_jobs_forecast", "completed_at", postgresql_where=text("forecast_s is not null")),
        Index("bulk_jobs_of_file", "input_file_id", postgresql_where=text(UNENDED)),
        Index(
            "bulk_jobs_idempotency",
            "tenant",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key is not null"),
        ),
    )


class BulkLine(Base):
    """A request that a line of a bulk job became, or the line's error; only a line's first row has its `custom_id`."""

    __tablename__ = "bulk_lines"

    job_id: Mapped[str] = mapped_column(ForeignKey("bulk_jobs.id", ondelete="CASCADE"), primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # the line's number in the file
    choice: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="0")
    custom_id: Mapped[str | None]
    request_id: Mapped[str | None]
    deadline_at: Mapped[datetime | None]  # the line's own deadline, beside the end of its job
    error: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # {code, message, param, status}

    __table_args__ = (
        # no two lines of a job that became requests have the same name, and so no line is stored twice
        Index("bulk_lines_names", "job_id", "custom_id", unique=True, postgresql_where=text("request_id is not null")),
        Index("bulk_lines_requests", "request_id", unique=True, postgresql_where=text("request_id is not null")),
    )
