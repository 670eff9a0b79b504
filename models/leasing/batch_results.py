"""Writes what a worker reports: batch starts, answers, unfinished requests, batch ends with their figures.

The caller writes only under leases that `leases.lock_held` returned in the same transaction. `at` and `now` are
monotonic seconds of the caller's process, and `ago_s` the seconds between them: instants follow the database's clock,
and the engine need not wait for the write.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from models.leasing.leases import Lease
from models.leasing.requeue import Failure, UnfinishedBatch, requeue
from models.planning.worker_costs import LONGEST_ROW
from models.sql import run
from models.tables import BatchStatus, RequestStatus
from models.tenants.usage import TIER


@dataclass(frozen=True, slots=True)
class BatchBegan:
    """The engine began to serve a batch."""

    lease: Lease
    at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The final state of a request; `tokens` counts all that were generated for it, in earlier slices too."""

    lease: Lease
    request_id: str
    status: RequestStatus
    text: str | None
    tokens: int
    reason: str | None  # eos, stop or limit
    ago_s: float
    error: Mapping[str, str] | None = None
    logprobs: Sequence[Any] | None = None  # as the API shows them
    gpu_s: float = 0.0  # its share of the device's seconds since it was last taken from the queue
    reasoning_tokens: int | None = None  # thinking tokens among `tokens`; None if its model's answers do not think
    cached_tokens: int | None = None  # prompt tokens that were cached and not computed; None if its engine does not say
    first_token_ago_s: float | None = None  # None if its first token came in an earlier batch, or is not known


@dataclass(frozen=True, slots=True)
class RowReturned:
    """An unfinished request that goes back to the queue with its generated ids; that is no failed attempt.

    `outgrew`: it ran alone and exceeded its worker's memory. `logprobs` are the ids', in the worker's own form.
    """

    lease: Lease
    request_id: str
    generated_ids: tuple[int, ...]
    outgrew: bool = False
    logprobs: Sequence[Any] = ()
    gpu_s: float = 0.0
    first_token_at: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The costs of serving a batch; token counts as `inference.sequences.RunFigures` defines them."""

    serving_s: float
    iterations: int
    generation_length: int
    valid_tokens: int
    pad_tokens: int
    invalid_tokens: int
    peak_kv_bytes: int


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """The last event of a batch; requests that are still in it go back to the queue, after a `failure` as suspects."""

    lease: Lease
    status: BatchStatus
    at: float
    figures: Figures | None = None
    failure: Failure | None = None


def write_started(connection: Connection, started: Sequence[BatchBegan], now: float) -> None:
    """Write start times of batches, and of those requests that no earlier slice has started."""
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


def write_answers(connection: Connection, answers: Sequence[Answer]) -> None:
    """Write final states and answers; a request whose cancel was requested ends cancelled and keeps its text.

    Adds tokens and GPU-seconds to the tenants' usage; a failed request adds only GPU-seconds.
    """
    run(
        connection,
        f"""
            with ended as (
            update requests r set
                status = case when r.cancel_requested_at is null then a.status else 'cancelled' end,
                output_text = a.text, output_tokens = a.tokens, finish_reason = a.reason, logprobs = a.logprobs::jsonb,
                reasoning_tokens = a.reasoning_tokens, cached_tokens = a.cached_tokens,
                error = case when r.cancel_requested_at is null then a.error::jsonb end,
                generated_ids = '{{}}', finished_at = clock_timestamp() - make_interval(secs => a.ago_s),
                first_token_at = coalesce(r.first_token_at, clock_timestamp() - make_interval(secs => a.first_token))
            from unnest(
                cast(:batch_ids as bigint[]), cast(:ids as text[]), cast(:statuses as text[]), cast(:texts as text[]),
                cast(:tokens as int[]), cast(:reasons as text[]), cast(:errors as text[]), cast(:ago_s as float8[]),
                cast(:logprobs as text[]), cast(:gpu_s as float8[]), cast(:reasoning_tokens as int[]),
                cast(:cached_tokens as int[]), cast(:first_token as float8[])
            ) as a (batch_id, id, status, text, tokens, reason, error, ago_s, logprobs, gpu_s, reasoning_tokens,
                cached_tokens, first_token)
            where r.id = any(cast(:ids as text[])) -- by their ids, whatever the planner thinks of the batch
                and r.id = a.id and r.batch_id = a.batch_id and r.status = 'in_progress'
            returning (r.finished_at at time zone 'UTC')::date as day, r.tenant, r.model, {TIER} as tier,
                case when r.status <> 'failed' then r.prompt_tokens end as prompt_tokens, r.output_tokens, a.gpu_s
            )
            insert into usage_entries (day, tenant, model, tier, requests, prompt_tokens, answer_tokens, gpu_s)
            select day, tenant, model, tier, count(prompt_tokens), coalesce(sum(prompt_tokens), 0), sum(output_tokens),
                sum(gpu_s)
            from ended group by day, tenant, model, tier
        """,  # noqa: S608  # a constant
        {
            "batch_ids": [answer.lease.batch_id for answer in answers],
            "ids": [answer.request_id for answer in answers],
            "statuses": [answer.status.value for answer in answers],
            "texts": [answer.text for answer in answers],
            "tokens": [answer.tokens for answer in answers],
            "reasons": [answer.reason for answer in answers],
            "errors": [json.dumps(answer.error) if answer.error else None for answer in answers],
            "ago_s": [answer.ago_s for answer in answers],
            "logprobs": [None if answer.logprobs is None else json.dumps(answer.logprobs) for answer in answers],
            "gpu_s": [answer.gpu_s for answer in answers],
            "reasoning_tokens": [answer.reasoning_tokens for answer in answers],
            "cached_tokens": [answer.cached_tokens for answer in answers],
            "first_token": [answer.first_token_ago_s for answer in answers],
        },
    )


def write_returned(connection: Connection, returned: Sequence[RowReturned], now: float) -> None:
    """Put unfinished requests back into the queue, or end them cancelled; adds their GPU-seconds to the usage."""
    run(
        connection,
        f"""
            with back as (
            update requests r set
                status = case when r.cancel_requested_at is null then 'queued' else 'cancelled' end,
                finished_at = case when r.cancel_requested_at is not null then clock_timestamp() end,
                generated_ids = a.generated_ids::int[], logprobs = a.logprobs::jsonb,
                attempts = r.attempts - 1, planner_epoch = 0,
                first_token_at = coalesce(r.first_token_at, clock_timestamp() - make_interval(secs => a.first_token)),
                outgrew_tokens = case when not a.outgrew then r.outgrew_tokens else (
                    select greatest(r.outgrew_tokens, {LONGEST_ROW})
                    from batches b join workers w on w.name = b.worker where b.id = r.batch_id) end
            from unnest(
                cast(:batch_ids as bigint[]), cast(:ids as text[]), cast(:generated_ids as text[]),
                cast(:outgrew as bool[]), cast(:logprobs as text[]), cast(:gpu_s as float8[]),
                cast(:first_token as float8[])
            ) as a (batch_id, id, generated_ids, outgrew, logprobs, gpu_s, first_token)
            where r.id = any(cast(:ids as text[])) -- by their ids, whatever the planner thinks of the batch
                and r.id = a.id and r.batch_id = a.batch_id and r.status = 'in_progress'
            returning r.tenant, r.model, {TIER} as tier, a.gpu_s
            )
            insert into usage_entries (day, tenant, model, tier, requests, prompt_tokens, answer_tokens, gpu_s)
            select (statement_timestamp() at time zone 'UTC')::date, tenant, model, tier, 0, 0, 0, sum(gpu_s)
            from back group by tenant, model, tier having sum(gpu_s) > 0
        """,  # noqa: S608  # a constant
        {
            "batch_ids": [row.lease.batch_id for row in returned],
            "ids": [row.request_id for row in returned],
            "generated_ids": ["{" + ",".join(map(str, row.generated_ids)) + "}" for row in returned],
            "outgrew": [row.outgrew for row in returned],
            "logprobs": [json.dumps(row.logprobs) if row.logprobs else None for row in returned],
            "gpu_s": [row.gpu_s for row in returned],
            "first_token": [None if row.first_token_at is None else now - row.first_token_at for row in returned],
        },
    )


def write_closed(connection: Connection, closed: Sequence[BatchEnded], now: float, max_attempts: int) -> None:
    """Write the ends of batches with their figures; put requests that are still in them back into the queue."""
    figures = [batch.figures for batch in closed]
    rows = run(
        connection,
        """
            update batches b set status = c.status, lease_until = null,
                finished_at = clock_timestamp() - make_interval(secs => c.ago_s),
                serving_s = c.serving_s, iterations = c.iterations, generation_length = c.generation_length,
                valid_tokens = c.valid_tokens, pad_tokens = c.pad_tokens, invalid_tokens = c.invalid_tokens,
                peak_kv_bytes = c.peak_kv_bytes
            from unnest(
                cast(:ids as bigint[]), cast(:statuses as text[]), cast(:ago_s as float8[]),
                cast(:serving_s as float8[]), cast(:iterations as int[]), cast(:generation_lengths as int[]),
                cast(:valid as int[]), cast(:pad as int[]), cast(:invalid as int[]), cast(:peak as bigint[])
            ) as c (id, status, ago_s, serving_s, iterations, generation_length, valid_tokens, pad_tokens,
                invalid_tokens, peak_kv_bytes)
            where b.id = c.id
            returning b.id, exists(
                select from requests r where r.batch_id = b.id and r.status = 'in_progress'
            ) as unfinished
        """,
        {
            "ids": [batch.lease.batch_id for batch in closed],
            "statuses": [batch.status.value for batch in closed],
            "ago_s": [now - batch.at for batch in closed],
            "serving_s": [f and f.serving_s for f in figures],
            "iterations": [f and f.iterations for f in figures],
            "generation_lengths": [f and f.generation_length for f in figures],
            "valid": [f and f.valid_tokens for f in figures],
            "pad": [f and f.pad_tokens for f in figures],
            "invalid": [f and f.invalid_tokens for f in figures],
            "peak": [f and f.peak_kv_bytes for f in figures],
        },
    )
    left = {row.id for row in rows if row.unfinished}
    unfinished = [
        UnfinishedBatch(batch.lease.batch_id, batch.failure, split=batch.status is BatchStatus.out_of_memory)
        for batch in closed
        if batch.lease.batch_id in left
    ]
    requeue(connection, unfinished, max_attempts)
