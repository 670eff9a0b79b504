"""Writes what a worker reports: batch starts, answers, unfinished requests, batch ends with their figures.

The caller writes only under leases that `leases.lock_held` returned in the same transaction. `at` (of the event) and
`now` (of the write) are monotonic seconds of the caller's process, and `ago_s` is their difference. So stored instants
follow the database's clock, and the engine need not wait for the write.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic_core import to_json
from sqlalchemy import Connection

from models.connections.sql import run
from models.leasing.leases import Lease
from models.leasing.requeue import MAX_ATTEMPTS, Failure, UnfinishedBatch, requeue
from models.tables import BatchStatus, RequestStatus
from models.tenants.usage import TIER

Row = TypeVar("Row")
# Bytes of the rows that one statement writes: what was generated while the database was away is written together, and
# Postgres takes no parameter of 1 GB. Not tuned otherwise.
MOST_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class BatchBegan:
    """The engine began to serve a batch."""

    lease: Lease
    at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The final state of a request; `tokens` counts all tokens generated for it, also in earlier slices."""

    lease: Lease
    request_id: str
    status: RequestStatus
    text: str | None
    tokens: int
    reason: str | None  # eos, stop or limit
    ago_s: float
    error: Mapping[str, str] | None = None
    stop_string: str | None = None  # the client's stop string that ended it, if the engine tells it
    logprobs: Sequence[Any] | None = None  # log probabilities in the API's form
    gpu_s: float = 0.0  # its share of the device's seconds since it was last taken from the queue
    reasoning_tokens: int | None = None  # thinking tokens among `tokens`; None if its model does not think
    cached_tokens: int | None = None  # prompt tokens that were cached and not computed; None if its engine does not say
    first_token_ago_s: float | None = None  # None if its first token came in an earlier batch, or is not known


@dataclass(frozen=True, slots=True)
class RowReturned:
    """An unfinished request that goes back to the queue with its generated ids.

    Its return counts as a failed attempt only if it is `blamed` for a failure, after which its server answered another
    row. `outgrew` says that it ran alone and exceeded its worker's memory. `logprobs` are in the worker's own form.
    """

    lease: Lease
    request_id: str
    generated_ids: tuple[int, ...]
    outgrew: bool = False
    logprobs: Sequence[Any] = ()
    gpu_s: float = 0.0
    first_token_at: float | None = None
    blamed: str = ""  # why its server did not answer the request; empty if the request is not to blame
    parked: bool = False  # whether it goes on as background work, because it repeats itself


@dataclass(frozen=True, slots=True)
class Figures:
    """The costs of serving a batch; token counts as `inference.engine_requests.RunFigures` defines them."""

    serving_s: float
    iterations: int
    generation_length: int
    valid_tokens: int
    pad_tokens: int
    invalid_tokens: int
    peak_kv_bytes: int


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """The last event of a batch; its unanswered requests go back to the queue, as suspects if there was a `failure`."""

    lease: Lease
    status: BatchStatus
    at: float
    figures: Figures | None = None
    failure: Failure | None = None


def write_started(connection: Connection, started: Sequence[BatchBegan], now: float) -> None:
    """Writes start times of batches, and of their requests that have not run in an earlier slice."""
    run(
        connection,
        """
            with begun as (
                update batches b set started_at = clock_timestamp() - make_interval(secs => s.ago_s)
                from unnest(cast(:ids as bigint[]), cast(:ago_s as float8[])) as s (id, ago_s)
                where b.id = s.id returning b.id, b.started_at
            )
            update requests r set started_at = begun.started_at from begun
            where r.batch_id = begun.id and r.status = 'in_progress' and r.started_at is null
        """,
        {"ids": [batch.lease.batch_id for batch in started], "ago_s": [now - batch.at for batch in started]},
    )


# The charge with the GPU-seconds that a worker has used for the request; null without one.
CHARGE = "r.charge || jsonb_build_object('gpu_s', (r.charge->>'gpu_s')::float8 + a.gpu_s)"
ANSWERS = f"""
    with ended as (
    update requests r /* complete, cut_off, fail, stop */ set
        status = case when r.cancel_requested_at is null then a.status else 'cancelled' end,
        output_text = a.text, output_tokens = a.tokens, finish_reason = a.reason, stop_string = a.stop_string,
        logprobs = a.logprobs, reasoning_tokens = a.reasoning_tokens, cached_tokens = a.cached_tokens,
        charge = {CHARGE},
        error = case when r.cancel_requested_at is null then a.error end,
        generated_ids = '{{}}', finished_at = clock_timestamp() - make_interval(secs => a.ago_s),
        first_token_at = coalesce(r.first_token_at,
            clock_timestamp() - make_interval(secs => a.first_token_ago_s))
    from json_to_recordset(cast(:answers as json)) as a (lease json, request_id text, status text, text text,
        tokens int, reason text, stop_string text, ago_s float8, error jsonb, logprobs jsonb, gpu_s float8,
        reasoning_tokens int, cached_tokens int, first_token_ago_s float8)
    where r.id = any(cast(:ids as text[])) -- by their ids, whatever the planner thinks of the batch
        and r.id = a.request_id and r.batch_id = (a.lease->>'batch_id')::bigint and r.status = 'in_progress'
    returning (r.finished_at at time zone 'UTC')::date as day, r.tenant, r.model, {TIER} as tier,
        case when r.status <> 'failed' then case when r.body ? 'repeats_prompt' then 0 else r.prompt_tokens end end
            as prompt_tokens, r.output_tokens, a.gpu_s, r.job_id
    )
    insert into usage_entries (day, tenant, model, tier, requests, prompt_tokens, answer_tokens, gpu_s, job_id)
    select day, tenant, model, tier, count(prompt_tokens), coalesce(sum(prompt_tokens), 0), sum(output_tokens),
        sum(gpu_s), job_id
    from ended group by day, tenant, model, tier, job_id
"""  # noqa: S608  # a constant


def write_answers(connection: Connection, answers: Sequence[Answer]) -> None:
    """Writes final states and answers; a request whose cancel was requested ends cancelled and keeps its text.

    Adds tokens and GPU-seconds to the tenants' usage; a failed request adds only GPU-seconds. Of several answers to a
    prompt, one adds its tokens.
    """
    for part, stored in in_parts(answers):
        run(connection, ANSWERS, {"answers": stored, "ids": [answer.request_id for answer in part]})


RETURNED = f"""
    with back as (
    update requests r /* give_back, fail, stop */ set
        status = case when r.cancel_requested_at is not null then 'cancelled' when a.given_up then 'failed'
            else 'queued' end,
        finished_at = case when r.cancel_requested_at is not null or a.given_up then clock_timestamp() end,
        error = case when r.cancel_requested_at is null and a.given_up then jsonb_build_object(
            'code', 'server_error', 'message', 'Given up after ' || r.attempts || ' attempts. After the last '
            'one the engine answered another request: ' || a.blamed) end,
        generated_ids = a.generated_ids, logprobs = nullif(a.logprobs, '[]'),
        generated_by = cast(:fingerprints as jsonb)->>r.model, charge = {CHARGE},
        attempts = r.attempts - case when a.blamed = '' then 1 else 0 end, planner_epoch = 0,
        tier = case when a.parked then 'flex' else r.tier end,
        first_token_at = coalesce(r.first_token_at,
            clock_timestamp() - make_interval(secs => cast(:now as float8) - a.first_token_at)),
        outgrew_tokens = case when not a.outgrew then r.outgrew_tokens else (
            select greatest(r.outgrew_tokens, w.longest_row_tokens)
            from batches b join workers w on w.name = b.worker where b.id = r.batch_id) end
    from (
        select given.*, blamed <> '' and attempts >= cast(:max_attempts as int) as given_up from requests
        join json_to_recordset(cast(:returned as json)) as given (lease json, request_id text,
            generated_ids int[], outgrew bool, logprobs jsonb, gpu_s float8, first_token_at float8, blamed text,
            parked bool)
        on id = request_id where id = any(cast(:ids as text[]))
    ) as a
    where r.id = any(cast(:ids as text[])) -- by their ids, whatever the planner thinks of the batch
        and r.id = a.request_id and r.batch_id = (a.lease->>'batch_id')::bigint and r.status = 'in_progress'
    returning r.tenant, r.model, {TIER} as tier, a.gpu_s, r.job_id
    )
    insert into usage_entries (day, tenant, model, tier, requests, prompt_tokens, answer_tokens, gpu_s, job_id)
    select (statement_timestamp() at time zone 'UTC')::date, tenant, model, tier, 0, 0, 0, sum(gpu_s), job_id
    from back group by tenant, model, tier, job_id having sum(gpu_s) > 0
"""  # noqa: S608  # a constant


def write_returned(
    connection: Connection,
    returned: Sequence[RowReturned],
    now: float,
    fingerprints: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Puts unfinished requests back into the queue, or cancels them if asked to; adds their GPU-seconds to the usage.

    A request that is blamed fails at its MAX_ATTEMPTS-th attempt. `fingerprints` are those of the worker, by model.
    """
    terms = {"now": now, "max_attempts": MAX_ATTEMPTS, "fingerprints": to_json(dict(fingerprints)).decode()}
    for part, stored in in_parts(returned):
        run(connection, RETURNED, {"returned": stored, "ids": [row.request_id for row in part], **terms})


def in_parts(rows: Sequence[Row], most_bytes: int = MOST_BYTES) -> Iterator[tuple[list[Row], str]]:
    """Yields the rows in parts, each with its JSON, which has at most `most_bytes` or one row."""
    part, texts, size = list[Row](), list[bytes](), 0
    for row in rows:
        text = to_json(row)
        if part and size + len(text) > most_bytes:
            yield part, f"[{b','.join(texts).decode()}]"
            part, texts, size = [], [], 0
        part.append(row)
        texts.append(text)
        size += len(text)
    if part:
        yield part, f"[{b','.join(texts).decode()}]"


def write_closed(connection: Connection, closed: Sequence[BatchEnded], now: float) -> None:
    """Writes the ends of batches with their figures; puts requests that are still in them back into the queue."""
    rows = run(
        connection,
        """
            update batches b set status = c.status, lease_until = null,
                finished_at = clock_timestamp() - make_interval(secs => cast(:now as float8) - c.at),
                serving_s = f.serving_s, iterations = f.iterations, generation_length = f.generation_length,
                valid_tokens = f.valid_tokens, pad_tokens = f.pad_tokens, invalid_tokens = f.invalid_tokens,
                peak_kv_bytes = f.peak_kv_bytes
            from json_to_recordset(cast(:closed as json)) as c (lease json, status text, at float8, figures json),
                json_populate_record(null::batches, c.figures) as f
            where b.id = any(cast(:ids as bigint[])) and b.id = (c.lease->>'batch_id')::bigint
            returning b.id, exists(
                select from requests r where r.batch_id = b.id and r.status = 'in_progress'
            ) as unfinished
        """,
        {"closed": to_json(closed).decode(), "ids": [batch.lease.batch_id for batch in closed], "now": now},
    )
    left = {row.id for row in rows if row.unfinished}
    unfinished = [
        UnfinishedBatch(batch.lease.batch_id, batch.failure, split=batch.status is BatchStatus.out_of_memory)
        for batch in closed
        if batch.lease.batch_id in left
    ]
    requeue(connection, unfinished)
