"""The tables of requests, batches and workers. Every instant is a time of the database's own clock."""

import enum
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Enum, Index, Integer, LargeBinary, Sequence, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from models.sql import text
from scheduling.request import SERVICE_TIERS, ServiceTier, service_tier

Instant = TIMESTAMP(timezone=True)
NOW = text("clock_timestamp()")


class RequestStatus(enum.StrEnum):
    """States of OpenAI's Responses API; the last four are final."""

    queued = "queued"
    in_progress = "in_progress"
    completed = "completed"
    incomplete = "incomplete"  # cut off at its output limit
    failed = "failed"
    cancelled = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the request has ended, after which its row does not change."""
        return self not in (RequestStatus.queued, RequestStatus.in_progress)


# Predicates of partial indexes; a query must repeat them word by word to use the indexes.
ANSWERED = "status in ('completed', 'incomplete')"
UNANSWERED = "status in ('failed', 'cancelled')"
WITHOUT_BATCH = f"batch_id is null and {ANSWERED}"
UNSTORED = "body ->> 'store' = 'false' and input <> ''"
PREFERRED_UNFINISHED = "status in ('queued', 'in_progress') and priority > 500"  # above 500: tier `priority`


class BatchStatus(enum.StrEnum):
    """`assigned` (committed, its message may be in the broker), `running` (leased), then one of the final three."""

    assigned = "assigned"
    running = "running"
    finished = "finished"
    out_of_memory = "out_of_memory"
    lost = "lost"  # its worker died or stopped before it answered the requests (`models.leasing.requeue`)


def _enum(kind: type[enum.StrEnum]) -> Enum:
    return Enum(kind, native_enum=False, length=16, values_callable=lambda e: [m.value for m in e])


class Base(DeclarativeBase):
    """The base class of all tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: Instant,
        str: Text,
        dict[str, Any]: JSONB,
        list[int]: ARRAY(Integer),
    }


# A planner draws the next epoch when it becomes the leader and when the policy changes.
PLANNER_EPOCHS = Sequence("planner_epochs", metadata=Base.metadata)


class StoredRequest(Base):
    """One request, from its arrival to its answer."""

    __tablename__ = "requests"

    id: Mapped[str] = mapped_column(primary_key=True)  # resp_<32 hex digits>
    tenant: Mapped[str]
    idempotency_key: Mapped[str | None]
    idempotency_sha256: Mapped[bytes | None] = mapped_column(LargeBinary)  # digest of the first body with this key
    model: Mapped[str]
    base: Mapped[str | None]  # if `model` is an adapter: the model whose workers serve it
    application: Mapped[str]  # metadata.application, or a digest of the instructions
    instructions: Mapped[str]
    input: Mapped[str]
    # what else the client sent, see `request_body.py`; a conversation also has its "messages" here, and `input` is then
    # the text into which they are rendered
    body: Mapped[dict[str, Any]]
    prompt_tokens: Mapped[int]  # L(p), counted with the served model's tokenizer
    input_tokens: Mapped[int]  # the user input length (Magnus III-B)
    limit_tokens: Mapped[int]
    priority: Mapped[int] = mapped_column(server_default="0")
    deadline_at: Mapped[datetime | None]
    needs: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")  # abilities that its engine needs
    job_id: Mapped[str | None]  # the bulk job whose line it is
    held: Mapped[bool] = mapped_column(server_default="false")  # its job is paused: no policy gets it

    status: Mapped[RequestStatus] = mapped_column(_enum(RequestStatus), server_default="queued")
    arrived_at: Mapped[datetime] = mapped_column(server_default=NOW)
    predicted_tokens: Mapped[int | None]
    predicted_upper_tokens: Mapped[int | None]
    predictor_version: Mapped[str | None]
    # the epoch of the planner that has it in its policy's queue; 0: no planner has it, and the planner fetches it at
    # its next step
    planner_epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")
    eta_at: Mapped[datetime | None]  # the ETA given at submission, which is later compared with the true time
    eta_low_at: Mapped[datetime | None]  # nine of ten answers should come between eta_low_at and eta_high_at
    eta_high_at: Mapped[datetime | None]
    forecast_s: Mapped[float | None]  # the forecast at submission, before the correction by earlier errors
    batch_id: Mapped[int | None] = mapped_column(BigInteger)  # its present or last batch
    sealed_group: Mapped[str | None]  # the batch that ran out of memory with it and is split into two sealed ones
    # the batch in which its engine failed: the group's requests are served again in halves, apart from all others
    suspect_group: Mapped[str | None]
    suspected: Mapped[int] = mapped_column(server_default="0")  # engine failures during which it was served
    # capacity in tokens of the largest worker on which this request, served alone, ran out of memory
    outgrew_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    attempts: Mapped[int] = mapped_column(
        server_default="0"
    )  # a failed attempt counts only if this request alone caused the failure
    cancel_requested_at: Mapped[datetime | None]

    generated_ids: Mapped[list[int]] = mapped_column(
        server_default="{}"
    )  # ids of the tokens that earlier slices generated
    # log probabilities, if asked for: of the generated ids in the worker's form, and after the answer in the API's form
    logprobs: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True), deferred=True, deferred_raiseload=True)
    output_text: Mapped[str | None]
    output_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]  # prompt tokens that were cached and not computed; null if its engine did not say
    reasoning_tokens: Mapped[int | None]  # thinking tokens of the answer; null if the model's answers do not think
    finish_reason: Mapped[str | None]  # eos, stop, limit
    error: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime | None]
    first_token_at: Mapped[datetime | None]  # null if its answer came without the times of its tokens
    finished_at: Mapped[datetime | None]

    @property
    def service_tier(self) -> ServiceTier:
        """The service tier that serves it."""
        return service_tier(self.priority)

    @property
    def served_by(self) -> str:
        """The model whose workers serve it."""
        return self.base or self.model

    @property
    def level(self) -> int:
        """Its priority within its service tier."""
        return self.priority - SERVICE_TIERS[self.service_tier]

    __table_args__ = (
        Index(
            "requests_unpredicted",
            text("priority desc"),
            "arrived_at",
            postgresql_where=text("status = 'queued' and predicted_tokens is null"),
        ),
        Index("requests_unfed", "planner_epoch", postgresql_where=text("status = 'queued'")),
        Index("requests_held", "planner_epoch", postgresql_where=text("status = 'queued' and held")),
        Index(
            "requests_predicted_early",
            "predictor_version",
            "arrived_at",
            postgresql_where=text(
                "status = 'queued' and predictor_version like 'running-%' and generated_ids = '{}' "
                "and sealed_group is null"
            ),
        ),
        # Lists; with one page of each status the same index also serves lists of all statuses (`client_requests.page`).
        Index("requests_by_status", "tenant", "status", "arrived_at", "id"),
        Index("requests_by_application", "tenant", "application", "status", "arrived_at", "id"),
        Index("requests_of_all_tenants", "status", "arrived_at", "id"),
        Index("requests_of_all_tenants_by_application", "application", "status", "arrived_at", "id"),
        # Two indexes, so that a query for answers reads no entries of cancelled requests, and the reverse.
        Index("requests_answered", "finished_at", postgresql_where=text(ANSWERED)),
        Index("requests_unanswered", "finished_at", postgresql_where=text(UNANSWERED)),
        # empty in a healthy service; `models/upkeep/invariants.py` reports its requests
        Index("requests_answered_without_batch", "finished_at", postgresql_where=text(WITHOUT_BATCH)),
        Index("requests_unstored", "finished_at", postgresql_where=text(UNSTORED)),
        Index("requests_preferred", "tenant", postgresql_where=text(PREFERRED_UNFINISHED)),
        Index("requests_of_batch", "batch_id", postgresql_where=text("status = 'in_progress'")),
        Index(
            "requests_idempotency",
            "tenant",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key is not null"),
        ),
        Index(
            "requests_deadlines", "deadline_at", postgresql_where=text("status = 'queued' and deadline_at is not null")
        ),
        CheckConstraint("(status in ('queued', 'in_progress')) = (finished_at is null)", name="finished_iff_final"),
    )


class StoredBatch(Base):
    """One batch on one worker: the planner's decision, the lease, and the figures once it has finished."""

    __tablename__ = "batches"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    worker: Mapped[str]
    model: Mapped[str | None]  # null: the worker's model; or the batch only preempts rows
    policy: Mapped[str]
    status: Mapped[BatchStatus] = mapped_column(_enum(BatchStatus), server_default="assigned")
    joins: Mapped[bool] = mapped_column(server_default="false")  # rows join the worker's running batch
    sealed: Mapped[bool] = mapped_column(server_default="false")  # accepts no further requests (Magnus III-C)
    # requests whose running rows are preempted before this batch begins
    preempts: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")
    size: Mapped[int]
    length: Mapped[int]  # L(B)
    predicted_generation_length: Mapped[int]  # G'(B)
    iteration_limit: Mapped[int | None]
    most_rows: Mapped[int | None]  # joiners wait at the worker until it has at most this many rows with them
    estimated_s: Mapped[float]
    assigned_at: Mapped[datetime] = mapped_column(server_default=NOW)
    sent_at: Mapped[datetime | None]
    # messages that were sent to its worker while the worker's heartbeat was on time
    sends: Mapped[int] = mapped_column(server_default="1")
    # fencing number: grows with each lease; a write under an old number changes nothing
    fence: Mapped[int] = mapped_column(server_default="0")
    lease_until: Mapped[datetime | None]
    progress_tokens: Mapped[int] = mapped_column(server_default="0")  # tokens of each row by the last heartbeat
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    # the batch's figures, written when it finishes
    serving_s: Mapped[float | None]
    iterations: Mapped[int | None]
    generation_length: Mapped[int | None]  # G(B)
    valid_tokens: Mapped[int | None]
    pad_tokens: Mapped[int | None]
    invalid_tokens: Mapped[int | None]
    peak_kv_bytes: Mapped[int | None] = mapped_column(BigInteger)

    __table_args__ = (
        Index("batches_open", "worker", postgresql_where=text("status in ('assigned', 'running')")),
        Index("batches_finished", "finished_at", postgresql_where=text("finished_at is not null")),
        Index(
            "batches_run_to_completion",
            "finished_at",
            postgresql_where=text("status = 'finished' and not joins and serving_s > 0 and generation_length > 0"),
        ),
        Index(
            "batches_out_of_memory",
            "finished_at",
            postgresql_where=text("status = 'out_of_memory' and finished_at is not null"),
        ),
        # finds the batches that ran in a window (`models.operations.window_stats`)
        Index(
            "batches_by_time",
            text("tstzrange(started_at, greatest(started_at, finished_at), '[]')"),
            postgresql_using="gist",
            postgresql_where=text("started_at is not null and finished_at is not null"),
        ),
    )


class StoredWorker(Base):
    """A registered worker; alive while its heartbeat is fresh by the database's clock."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    device: Mapped[str]
    theta_bytes: Mapped[int] = mapped_column(BigInteger)
    delta_bytes: Mapped[int] = mapped_column(BigInteger)
    # those of `delta_bytes` in layers with a window, which hold the newest `window_tokens` tokens of a row
    windowed_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    window_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    curves: Mapped[dict[str, Any] | None]  # measured prefill and decode curves (SCLS Eq. 3-4)
    # true: memory is the sum over rows, in blocks of `block_tokens`; false: the number of rows times the longest row
    paged: Mapped[bool] = mapped_column(server_default="false")
    block_tokens: Mapped[int] = mapped_column(server_default="1")
    lacks: Mapped[list[str]] = mapped_column(
        ARRAY(Text), server_default="{}"
    )  # names of the needs that its engine cannot meet
    adapters: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")  # served beside its model
    prefix_cache: Mapped[bool] = mapped_column(server_default="false")  # whether its engine caches prefixes of prompts
    max_rows: Mapped[int | None]  # the most rows that it takes at once, however large its memory
    fault: Mapped[str | None]  # why its engine cannot serve now; until it can, the worker gets no batch
    row_lengths: Mapped[dict[str, Any]] = mapped_column(server_default="{}")  # a `RowLength` by the id of the request
    # tokens that its running rows share with others, which its memory holds once
    shared_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # tokens that its engine has guessed and verified since it started, and those of them that were right
    guessed_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    right_guesses: Mapped[int] = mapped_column(BigInteger, server_default="0")
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=NOW)
    stopped_at: Mapped[datetime | None]
    stopping: Mapped[bool] = mapped_column(
        server_default="false"
    )  # its process is stopping, so it gets no further batch
    # since when it gets no batch, because it took none of those that were sent; null once it takes messages again
    not_consuming_since: Mapped[datetime | None]
    version: Mapped[str | None]  # version of Magnus that its process runs
    instance: Mapped[str | None]  # its process, host#boot:process id
    drained_at: Mapped[datetime | None]  # since when an operator keeps new batches from it
    loadable: Mapped[dict[str, Any]] = mapped_column(server_default="{}")  # the models that it can load, by name
    wanted_model: Mapped[str | None]  # the planner's order to change to this model; null once it has loaded one
    model_changes: Mapped[int] = mapped_column(server_default="0")  # since its process started
