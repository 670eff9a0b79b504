"""Takes unanswered requests out of their batches: queues them again, cancels them, or fails the cause of a failure.

When an engine or a whole worker fails, each request that it was serving is a suspect. Suspects keep together as a
group, which the planner serves again in halves, apart from all others (`scheduling.policies.wrapping.isolation`). So
after at most ⌈log2(group)⌉ more failures the failing request is alone and fails, and the others have their answers. For
the others the failed batches do not count as attempts.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Connection

from models.sql import text

# A request fails at its second failure if an engine served it alone: one failure may be chance. If a worker was lost,
# it takes MAGNUS_MAX_ATTEMPTS failures, because operators and kernels end processes too.
ENGINE_FAILURES = 2


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an engine's batches failed together; the batches of one failure have the same `first_batch`.

    `error` is an engine error's class; None if the process ended, was silent or lost its device.
    """

    first_batch: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """A batch that ended with unfinished requests; without a failure they return to the queue unchanged.

    `split`: the batch ran out of memory, and its requests come back as a group to be split in two (Magnus III-C). Rows
    that were to join a running batch wait again as before, or as suspects if this happened to them before.
    """

    batch_id: int
    failure: Failure | None = None
    split: bool = False


@dataclass(frozen=True, slots=True)
class LostBatch:
    """An open batch of a lost worker; `started` is written shortly after the engine began the batch."""

    id: int
    worker: str
    joins: bool
    taken: bool
    started: bool


def blamed(lost: Iterable[LostBatch], died: bool = True) -> list[UnfinishedBatch]:
    """Returns the batches that may have caused the worker's failure: those that its engine was serving.

    The engine serves joining batches together and all others one by one, in the order of their ids. Returns the started
    ones and, if the process `died`, the next one: it may have begun before its start was written.
    """
    unfinished = []
    for _, of_worker in groupby(sorted(lost, key=lambda batch: (batch.worker, batch.id)), lambda batch: batch.worker):
        in_engine: dict[int, list[LostBatch]] = {}
        first_joined = None
        for batch in of_worker:
            if not batch.taken:
                unfinished.append(UnfinishedBatch(batch.id))
            elif batch.joins:
                first_joined = first_joined or batch.id
                in_engine.setdefault(first_joined, []).append(batch)
            else:
                in_engine[batch.id] = [batch]
        next_found = False
        for first_batch, batches in in_engine.items():
            started = any(batch.started for batch in batches)
            failure = Failure(first_batch) if started or (died and not next_found) else None
            next_found = next_found or not started
            unfinished += [UnfinishedBatch(batch.id, failure) for batch in batches]
    return unfinished


def requeue(connection: Connection, unfinished: Collection[UnfinishedBatch], max_attempts: int) -> list[str]:
    """Takes the unfinished requests out of these batches; returns their ids.

    A request with a cancel requested ends cancelled. A request that was alone in a failed engine fails at its second
    failure, or at its `max_attempts`-th if the worker's process ended. All others are queued again, and the batch does
    not count as an attempt.
    """
    if not unfinished:
        return []
    failures = [batch.failure for batch in unfinished]
    rows = connection.execute(
        text("""
            with unanswered as (
                select r.id, b.first_batch, b.error, b.split, r.suspected,
                    r.cancel_requested_at is not null as cancelled,
                    b.first_batch is not null or b.split and made.joins as failure,
                    b.split and (r.suspect_group is not null or made.joins and r.suspected > 0) as suspect
                from unnest(
                    cast(:ids as bigint[]), cast(:first_batches as bigint[]), cast(:errors as text[]),
                    cast(:splits as bool[])
                ) as b (id, first_batch, error, split) join batches made on made.id = b.id
                cross join lateral ( -- batch by batch, whatever the statistics say of how many requests are in progress
                    select * from requests where batch_id = b.id and status = 'in_progress' for update
                ) as r
            ), judged as (
                select *, first_batch is not null and count(*) over (partition by first_batch) = 1
                    and suspected + 1 >= case when error is null then cast(:max_attempts as int)
                        else least(cast(:engine_failures as int), cast(:max_attempts as int)) end as guilty
                from unanswered
            ), decided as (
                select *, case when cancelled then 'cancelled' when guilty then 'failed' else 'queued' end
                    as next_status from judged
            )
            update requests r set status = d.next_status,
                finished_at = case when d.next_status <> 'queued' then clock_timestamp() end,
                error = case when d.next_status = 'failed' then jsonb_build_object('code', 'server_error', 'message',
                    'Given up after ' || d.suspected + 1 || ' attempts: ' || case when d.error is null
                        then 'each time the worker was lost, the last time with this request alone.'
                        else 'each time the engine failed, the last time on this request alone (' || d.error || ').'
                        end) end,
                attempts = case when d.next_status = 'failed' then greatest(r.attempts, d.suspected + 1)
                    else r.attempts - 1 end,
                suspected = d.suspected + case when d.failure then 1 else 0 end,
                suspect_group = case when d.first_batch is not null then d.first_batch::text
                    when d.suspect then r.batch_id::text else r.suspect_group end,
                sealed_group = case when d.split and not d.suspect and d.first_batch is null then r.batch_id::text end,
                planner_epoch = 0
            from decided d where r.id = d.id
            returning r.id
        """),
        {
            "ids": [batch.batch_id for batch in unfinished],
            "first_batches": [failure and failure.first_batch for failure in failures],
            "errors": [failure and failure.error for failure in failures],
            "splits": [batch.split for batch in unfinished],
            "max_attempts": max_attempts,
            "engine_failures": ENGINE_FAILURES,
        },
    )
    return [row.id for row in rows]
