"""Bodies, queries and objects of /v1/files and /v1/batches, as OpenAI's clients send and read them."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from models.bulk.bulk_tables import BulkJob, BulkStatus, FilePurpose, StoredFile
from protocol.api_objects import ApiObject, DeletedObject, ListPage, PageQuery, Query
from protocol.field_types import Body, Metadata, Text
from protocol.responses.response_objects import ShownPromise, Usage, usage_of

UNITS_S = {"m": 60, "h": 3600, "d": 86400}
WINDOW = re.compile(r"([1-9]\d{0,4})([mhd])")
EXPIRES_AFTER_S = range(3600, 2_592_001)  # OpenAI's bounds
LONGEST_WINDOW_S = 14 * 86400  # OpenAI allows only 24h. Shorter than the default retention of results; not tuned


def window_s(window: str) -> float:
    """Returns the seconds of a completion window such as 30m, 24h or 7d; raises ValueError."""
    found = WINDOW.fullmatch(window)
    seconds = int(found[1]) * UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_WINDOW_S:
        raise ValueError("a window looks like 30m, 24h or 7d, and has at most 14d")
    return float(seconds)


def _readable(window: str) -> str:
    window_s(window)
    return window


Window = Annotated[str, AfterValidator(_readable), Field(json_schema_extra={"pattern": f"^{WINDOW.pattern}$"})]
Endpoint = Literal[
    "/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score"
]


class OutputExpiry(Body):
    """When the results of a batch expire."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=EXPIRES_AFTER_S[0], le=EXPIRES_AFTER_S[-1])


class QuoteBatch(Body):
    """POST /v1/magnus/quotes, for a batch: the file and the call of its lines."""

    input_file_id: Text = Field(description="An uploaded file of purpose `batch`")
    endpoint: Endpoint = Field(description="The call that every line makes")


class AskedBudget(Body):
    """What the lines of a batch may use, after which those that wait pause until it is raised."""

    amount: float = Field(ge=1e-6, le=1e12)  # so that its GPU-seconds are neither 0 nor infinite at any price
    unit: Literal["gpu_s", "price"] = Field(
        default="gpu_s", description="GPU-seconds, as usage counts them, or the operator's currency (MAGNUS_PRICES)"
    )


class BatchExtras(Body):
    """Fields that OpenAI's API lacks."""

    dry_run: bool = Field(default=False, description="true: some lines are checked, all are estimated, nothing runs")
    service_tier: Literal["flex", "off_peak"] = Field(
        default="flex", description="off_peak: its lines are served in the service's off-peak hours alone"
    )
    budget: AskedBudget | None = Field(default=None, description="After its use the batch's waiting lines pause")
    quote: Text | None = Field(default=None, description="Accepts an offer for the file, which sets the tier")


class CreateBatch(Body):
    """POST /v1/batches."""

    input_file_id: Text = Field(description="An uploaded file of purpose `batch`")
    endpoint: Endpoint = Field(description="The call that every line makes")
    completion_window: Window = Field(description="When it must be done: 24h, or minutes, hours, days, up to 14d")
    metadata: Metadata | None = Field(default=None, description="Echoed")
    magnus: BatchExtras = Field(default=BatchExtras(), description="Fields that only Magnus has")
    output_expires_after: OutputExpiry | None = Field(
        default=None, description="How long after the end of the batch its output and error files are deleted"
    )


class ChangeBatch(Body):
    """POST /v1/batches/{id}."""

    completion_window: Window | None = Field(
        default=None, description="When it must be done, counted from its creation"
    )
    service_tier: Literal["flex", "off_peak", "default"] | None = Field(
        default=None,
        description="flex: its lines get the capacity that others leave, off_peak: in off-peak hours alone; "
        "default: as other requests",
    )
    budget: AskedBudget | None = Field(default=None, description="In place of its former one, from then on")


class FileListQuery(PageQuery):
    """GET /v1/files."""

    purpose: Literal["batch", "batch_output"] | None = None
    limit: int = Field(default=1000, ge=1, le=10_000, description="Most entries of a page")
    order: Literal["asc", "desc"] = Field(default="desc", description="By age; desc: newest first")


class BatchListQuery(PageQuery):
    """GET /v1/batches."""


class ResultsQuery(Query):
    """GET /v1/batches/{id}/results."""

    format: Literal["jsonl", "csv", "parquet"] = "jsonl"


class FileObject(ApiObject):
    """OpenAI's File."""

    id: str
    object: Literal["file"] = "file"
    bytes: int = Field(description="Of results: 0 until the batch has ended")
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class FileList(ListPage):
    """One page of files."""

    data: list[FileObject]


class DeletedFile(DeletedObject):
    """A deleted file."""

    object: Literal["file"] = "file"


class BatchError(ApiObject):
    """Why one line is not valid, in a batch that has no valid line."""

    code: str | None
    line: int | None
    message: str | None
    param: str | None


class BatchErrors(ApiObject):
    """The errors of the first lines of a batch that has no valid line."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchRequestCounts(ApiObject):
    """Lines of a batch: all, answered, failed."""

    total: int
    completed: int
    failed: int


class BatchBudget(ApiObject):
    """The budget of a batch, and what it has used of it."""

    amount: float
    unit: Literal["gpu_s", "price"]
    used: float = Field(description="By the answers that had come ten seconds ago, in the budget's unit")


class BatchMagnus(ApiObject):
    """Fields of a batch that OpenAI's Batch lacks."""

    paused_at: int | None = Field(default=None, description="Since when its client has paused its waiting lines")
    paused_for: Literal["client", "budget", "tenant_budget"] | None = Field(
        default=None, description="Why its waiting lines pause: its client's call, its budget, or that of its tenant"
    )
    budget: BatchBudget | None = Field(default=None, description="null: it has none")
    budget_lines: int | None = Field(
        default=None,
        description="Lines that should be answered before it pauses for its budget or its tenant's; "
        "null: all, or unknown",
    )
    gpu_s: float = Field(default=0.0, description="Workers' seconds that its lines had taken ten seconds ago")
    price: float | None = Field(default=None, description="Of gpu_s, in its tier; null without MAGNUS_PRICES")
    promise: ShownPromise | None = Field(default=None, description="Of the quote that it accepted")
    parent_id: str | None = Field(default=None, description="The batch whose failed lines it retries")
    service_tier: str = Field(
        default="flex", description="Of its lines: flex, off_peak, or default once it was changed"
    )
    done_tokens: int = Field(default=0, description="Tokens of its ended lines, prompts and answers")
    predicted_tokens: int | None = Field(default=None, description="Tokens of all its lines, as far as predicted")
    left_gpu_s: float | None = Field(
        default=None, description="Workers' seconds that its lines without an answer should take, as usage counts them"
    )
    eta_s: float | None = Field(default=None, description="Seconds until it should have ended; null if unknown")
    eta_low_s: float | None = Field(default=None, description="Lower bound: nine of ten end between both bounds")
    eta_high_s: float | None = Field(default=None, description="Upper bound of eta_s")
    eta_at: float | None = Field(default=None, description="eta_s as a Unix time of the database's clock")
    feasible: bool | None = Field(default=None, description="Whether its window should be kept; null if unknown")
    earliest_window: str | None = Field(default=None, description="If not: the shortest window that should")
    warnings: list[str] = Field(default=[], description="What its client should know")
    dry_run: bool = Field(default=False, description="Whether it was only estimated, not created")
    checked_lines: int | None = Field(
        default=None, description="Lines that a dry run has checked; `errors` has the bad"
    )


class Batch(ApiObject):
    """OpenAI's Batch; its result files can be read before it ends, with the lines that have ended by then."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BulkStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    usage: Usage | None = Field(description="Tokens of its answered lines, the sum of theirs, once it has ended")
    metadata: dict[str, str] | None
    magnus: BatchMagnus


class BatchList(ListPage):
    """One page of batches."""

    data: list[Batch]


def file_object(file: StoredFile) -> FileObject:
    """Returns a stored file as the API shows it."""
    return FileObject(
        id=file.id,
        bytes=file.bytes or 0,
        created_at=int(file.created_at.timestamp()),
        expires_at=_seconds(file.expires_at),
        filename=file.filename,
        purpose="batch" if file.purpose is FilePurpose.batch else "batch_output",
    )


def batch_of(job: BulkJob, magnus: BatchMagnus) -> Batch:
    """Returns a stored bulk job as the API shows it."""
    instants = {f"{state.value}_at": _seconds(getattr(job, f"{state.value}_at", None)) for state in BulkStatus}
    instants.pop("validating_at")
    return Batch(
        id=job.id,
        endpoint=job.endpoint,
        errors=None if job.errors is None else BatchErrors(data=[BatchError(**error) for error in job.errors]),
        input_file_id=job.input_file_id,
        completion_window=job.completion_window,
        status=job.status,
        output_file_id=job.output_file_id,
        error_file_id=job.error_file_id,
        created_at=int(job.created_at.timestamp()),
        expires_at=int(job.expires_at.timestamp()),
        request_counts=BatchRequestCounts(total=job.lines, completed=job.completed, failed=job.failed),
        usage=None if job.usage is None or job.ended_at is None else usage_of(**job.usage),
        metadata=job.labels,
        magnus=magnus,
        **instants,
    )


def _seconds(at: Any) -> int | None:
    return None if at is None else int(at.timestamp())
