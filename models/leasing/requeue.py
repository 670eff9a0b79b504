"""Takes unanswered requests out of their batches: queues them again, cancels them, or fails the one that is to blame.

When an engine or a whole worker fails, each request that it was serving is a suspect. The suspects of one failure are a
group, which the planner serves again in halves, apart from all other requests (`scheduling.sharing.isolation`). After
at most ⌈log2(group)⌉ more failures the guilty request runs alone and fails, and the others have their answers. For
the others the failed batches do not count as attempts.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Connection

from models.connections.sql import text

# A request fails at its second engine failure if the engine served it alone: one failure may be chance. If workers were
# lost, it fails at the MAX_ATTEMPTS-th failure, because operators and kernels end processes, too.
ENGINE_FAILURES = 2
MAX_ATTEMPTS = 3


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

    `split` says that the batch ran out of memory, so that its requests come back as a group to be split in two (Magnus
    III-C).
    """

    batch_id: int
    failure: Failure | None = None
    split: bool = False


@dataclass(frozen=True, slots=True)
class LostBatch:
    """An open batch of a lost worker; `started` becomes true shortly after the engine began the batch."""

    id: int
    worker: str
    joins: bool
    taken: bool
    started: bool


def blamed(lost: Iterable[LostBatch], died: bool = True) -> list[UnfinishedBatch]:
    """Returns all these batches; those that may have caused the worker's loss, being in its engine, have a failure.

    The engine serves joining batches together and all others one by one, in the order of their ids. Started batches
    have a failure, and so has the next one if the process `died`: it may have begun before its start was written.
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


def lose_batches(connection: Connection, lost: str, values: Mapping[str, Any], died: bool = True) -> list[str]:
    """Marks batches as lost and takes the unfinished requests out of them; returns the ids of these requests.

    `lost` is SQL that selects each batch's id from `batches b`, and whether its worker had taken the batch and failed.
    """
    rows = connection.execute(
        text(f"""
            with lost (id, taken) as ({lost} order by b.id for update of b)
            update batches b set status = 'lost', finished_at = clock_timestamp(), lease_until = null
            from lost where b.id = lost.id
            returning b.id, b.worker, b.joins, lost.taken, b.started_at is not null as started
        """),  # noqa: S608  # constants
        values,
    )
    return requeue(connection, blamed((LostBatch(**row._mapping) for row in rows), died))


def requeue(connection: Connection, unfinished: Collection[UnfinishedBatch]) -> list[str]:
    """Takes the unfinished requests out of these batches; returns their ids.

    A request whose cancel was requested ends cancelled. A request that was alone in a failed engine fails at its
    ENGINE_FAILURES-th failure, or at its MAX_ATTEMPTS-th if the worker was lost. All others are queued again, and the
    batch does not count as an attempt of theirs.
    """
    if not unfinished:
        return []
    rows = connection.execute(
        text("""
            with unanswered as (
                select r.id, b.first_batch, b.error, b.split, r.suspected,
                    r.cancel_requested_at is not null as cancelled,
                    b.first_batch is not null as failure, b.split and r.suspect_group is not null as suspect
                from (
                    select batch_id as id, (failure->>'first_batch')::bigint as first_batch, failure->>'error' as error,
                        split from json_to_recordset(cast(:unfinished as json))
                        as given (batch_id bigint, failure json, split bool)
                ) as b
                cross join lateral ( -- batch by batch, whatever the statistics say of how many requests are in progress
                    select * from requests where batch_id = b.id and status = 'in_progress' for update
                ) as r
            ), judged as (
                select *, first_batch is not null and count(*) over (partition by first_batch) = 1
                    and suspected + 1 >= case when error is null then cast(:max_attempts as int)
                        else cast(:engine_failures as int) end as guilty
                from unanswered
            ), decided as (
                select *, case when cancelled then 'cancelled' when guilty then 'failed' else 'queued' end
                    as next_status from judged
            )
            update requests r /* give_back, fail, stop */ set status = d.next_status,
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
            "unfinished": to_json(list(unfinished)).decode(),
            "max_attempts": MAX_ATTEMPTS,
            "engine_failures": ENGINE_FAILURES,
        },
    )
    return [row.id for row in rows]
