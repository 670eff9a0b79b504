"""The tables of requests, batches and workers. Every instant is a time of the database's own clock."""

import enum
from datetime import datetime
from typing import Any, ClassVar, Literal

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Enum, Index, Integer, LargeBinary, Sequence, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from models.connections.sql import text
from models.request_life import RequestStatus as RequestStatus
from scheduling.request import TIER_LEVELS, ServiceTier

RequestKind = Literal["answer", "vectors", "scores"]  # what the model computes for a request
Instant = TIMESTAMP(timezone=True)
NOW = text("clock_timestamp()")


# Predicates of partial indexes; a query must repeat them word by word to use the indexes.
ANSWERED = "status in ('completed', 'incomplete')"
UNANSWERED = "status in ('failed', 'cancelled')"
WITHOUT_BATCH = f"batch_id is null and {ANSWERED}"
UNSTORED = "body ->> 'store' = 'false' and input <> ''"
PREDICTED = "status = 'queued' and predicted_tokens is not null and twin_of is null"
# Twins (`models.planning.twins`): the request of a group that is computed, and those that wait for its answer.
LEADING = "status in ('queued', 'in_progress') and twin_sha256 is not null and twin_of is null"
FOLLOWING = "status = 'queued' and twin_of is not null"
TO_SHARE = "shared and finished_at is not null"
PREFERRED_UNFINISHED = "status in ('queued', 'in_progress') and tier = 'priority'"


class BatchStatus(enum.StrEnum):
    """States of a batch: `assigned` (committed; its message may be in the broker), `running` (leased), a final one."""

    assigned = "assigned"
    running = "running"
    finished = "finished"
    out_of_memory = "out_of_memory"
    lost = "lost"  # its worker died or stopped before it answered the requests (`models.leasing.requeue`)


def _enum(kind: type[enum.StrEnum]) -> Enum:
    return Enum(kind, native_enum=False, length=16, values_callable=lambda e: [m.value for m in e])


# A type of its own in Postgres, which orders its values as TIER_LEVELS lists them: from the lowest tier to the highest.
Tier = Enum(*TIER_LEVELS, name="service_tier")


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
    base: Mapped[str | None]  # the model whose workers serve the adapter `model`; null if `model` is no adapter
    application: Mapped[str]  # metadata.application, or a digest of the instructions
    instructions: Mapped[str]
    input: Mapped[str]
    # what else the client sent, see `request_body.py`; a conversation also has its "messages" here, and its `input` is
    # the text into which the messages are rendered
    body: Mapped[dict[str, Any]]
    prompt_tokens: Mapped[int]  # L(p), counted with the served model's tokenizer
    input_tokens: Mapped[int]  # the user input length (Magnus III-B)
    limit_tokens: Mapped[int]
    kind: Mapped[RequestKind] = mapped_column(Text, server_default="answer")
    tier: Mapped[ServiceTier] = mapped_column(Tier, server_default="default")
    priority: Mapped[int] = mapped_column(server_default="0")  # within its tier, as the client gave it
    deadline_at: Mapped[datetime | None]
    needs: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")  # abilities that its engine needs
    job_id: Mapped[str | None]  # the bulk job whose line it is
    held: Mapped[bool] = mapped_column(server_default="false")  # whether its job is paused, so that no policy gets it
    # the fields of the `Charge`, what it counts against its tenant's limits of expected work; null without such limits
    charge: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    # digest of all that decides its answer, its turn and its job; null: it shares no computation
    twin_sha256: Mapped[bytes | None] = mapped_column(LargeBinary)
    twin_of: Mapped[str | None]  # the equal request for whose answer it waits, or whose answer it got
    shared: Mapped[bool] = mapped_column(server_default="false")  # whether its end is still to be told to twins

    status: Mapped[RequestStatus] = mapped_column(_enum(RequestStatus), server_default="queued")
    arrived_at: Mapped[datetime] = mapped_column(server_default=NOW)
    predicted_tokens: Mapped[int | None]
    predicted_upper_tokens: Mapped[int | None]
    predictor_version: Mapped[str | None]
    predicting_until: Mapped[datetime | None]  # until then, no other predictor predicts it
    # the epoch of the planner that has it in its policy's queue; 0: no planner has it, and the planner fetches it at
    # its next step
    planner_epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # the fields of the `SubmissionEta` given at submission, which is later compared with the true time
    eta: Mapped[dict[str, float] | None] = mapped_column(JSONB(none_as_null=True))
    batch_id: Mapped[int | None] = mapped_column(BigInteger)  # its present or last batch
    sealed_group: Mapped[str | None]  # its batch that ran out of memory and is split into two sealed batches
    # the batch in which its engine failed: the group's requests are served again in halves, apart from all others
    suspect_group: Mapped[str | None]
    suspected: Mapped[int] = mapped_column(server_default="0")  # number of engine failures while it was being served
    # capacity in tokens of the largest worker on which this request, served alone, ran out of memory
    outgrew_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # a failed attempt counts only if this request alone caused the failure
    attempts: Mapped[int] = mapped_column(server_default="0")
    cancel_requested_at: Mapped[datetime | None]

    # ids of the tokens that earlier slices generated
    generated_ids: Mapped[list[int]] = mapped_column(server_default="{}")
    generated_by: Mapped[str | None]  # the fingerprint of the model or adapter that generated them
    # log probabilities, if wanted: those of `generated_ids` in the worker's form, at the end the answer's in the API's
    logprobs: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True), deferred=True, deferred_raiseload=True)
    output_text: Mapped[str | None]
    output_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]  # prompt tokens that were cached and not computed; null if its engine did not say
    reasoning_tokens: Mapped[int | None]  # thinking tokens of the answer; null if the model does not think
    finish_reason: Mapped[str | None]  # eos, landed, stop, limit, loop
    stop_string: Mapped[str | None]  # which of the client's stop strings ended the answer; null also if it is not known
    error: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime | None]
    first_token_at: Mapped[datetime | None]  # null if its answer came without the times of its tokens
    finished_at: Mapped[datetime | None]

    @property
    def served_by(self) -> str:
        """The model whose workers serve the request."""
        return self.base or self.model

    __table_args__ = (
        Index(
            "requests_unpredicted",
            "tenant",
            text("tier desc"),
            text("priority desc"),
            "arrived_at",
            postgresql_where=text("status = 'queued' and predicted_tokens is null"),
        ),
        # Without unpredicted requests: the planner would read past all of them in each step.
        Index("requests_unfed", "planner_epoch", postgresql_where=text(f"{PREDICTED} and tier > 'flex'")),
        Index("requests_unfed_background", "planner_epoch", postgresql_where=text(f"{PREDICTED} and tier <= 'flex'")),
        Index("requests_leading", "tenant", "twin_sha256", "arrived_at", "id", postgresql_where=text(LEADING)),
        Index("requests_following", "tenant", "twin_sha256", "arrived_at", "id", postgresql_where=text(FOLLOWING)),
        Index("requests_to_share", "finished_at", postgresql_where=text(TO_SHARE)),
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
        # For lists; a list of all statuses reads one page of each status from the same index (`client_requests.page`).
        Index("requests_by_status", "tenant", "status", "arrived_at", "id"),
        Index("requests_by_application", "tenant", "application", "status", "arrived_at", "id"),
        Index("requests_of_all_tenants", "status", "arrived_at", "id"),
        Index("requests_of_all_tenants_by_application", "application", "status", "arrived_at", "id"),
        # Two indexes, so that a query for answers reads no entries of cancelled requests, and the reverse.
        Index("requests_answered", "finished_at", postgresql_where=text(ANSWERED)),
        Index("requests_unanswered", "finished_at", postgresql_where=text(UNANSWERED)),
        # This index is empty in a healthy service; `models/upkeep/invariants.py` reports the requests in it.
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
    model: Mapped[str | None]  # the model of its requests; null stands for the worker's, also if it only preempts rows
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
    most_rows: Mapped[int | None]  # joining rows wait at the worker until it has at most this many rows including them
    estimated_s: Mapped[float]
    assigned_at: Mapped[datetime] = mapped_column(server_default=NOW)
    sent_at: Mapped[datetime | None]
    # number of messages that were sent to its worker while the worker's heartbeat was on time
    sends: Mapped[int] = mapped_column(server_default="1")
    # fencing number: grows with each lease; a write under an old number changes nothing
    fence: Mapped[int] = mapped_column(server_default="0")
    lease_until: Mapped[datetime | None]
    progress_tokens: Mapped[int] = mapped_column(server_default="0")  # tokens gained by a row until the last heartbeat
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
        Index("batches_lost", "finished_at", postgresql_where=text("status = 'lost'")),
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
    instance: Mapped[str | None]  # its process, host#boot:process id
    facts: Mapped[dict[str, Any]]  # its `WorkerFacts`, written when it registered
    report: Mapped[dict[str, Any]] = mapped_column(server_default="{}")  # the `WorkerReport` of its last heartbeat
    longest_row_tokens: Mapped[int] = mapped_column(BigInteger)  # `KvMemory.longest_row_tokens` of its facts
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=NOW)
    stopped_at: Mapped[datetime | None]
    stopping: Mapped[bool] = mapped_column(server_default="false")  # its process stops, so it gets no further batch
    # since when it gets no batch, because it took none of the batches sent to it; null once it takes messages again
    not_consuming_since: Mapped[datetime | None]
    drained_at: Mapped[datetime | None]  # since when an operator keeps new batches from it
    wanted_model: Mapped[str | None]  # the model that the planner ordered it to load; null once it has registered again
