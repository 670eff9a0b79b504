"""Requests that leave their batch unanswered: they are queued again, cancelled, or fail after too many attempts."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """A batch that ended with requests still in it.

    `counts_as_attempt`: for them the batch was a failed attempt. `split`: the batch ran out of memory. Its requests
    then keep their planner epoch, because the planner that assigned them splits them (Magnus III-C); their sealed group
    is the batch's id, by which a planner that takes over finds the requests to split.
    """

    batch_id: int
    counts_as_attempt: bool = False
    split: bool = False


def requeue(connection: Connection, unfinished: Collection[UnfinishedBatch], max_attempts: int) -> list[str]:
    """Take the unfinished requests out of these batches; returns their ids.

    A request with a cancel requested ends cancelled. One whose attempts reached `max_attempts` fails if this batch
    counts as an attempt; if the batch does not count, it is subtracted from the request's attempts.
    """
    if not unfinished:
        return []
    rows = connection.execute(
        text("""
            with unanswered as (
                select r.id, b.counts_as_attempt, b.split,
                    case when r.cancel_requested_at is not null then 'cancelled'
                        when b.counts_as_attempt and r.attempts >= :max_attempts then 'failed'
                        else 'queued' end as next_status
                from requests r
                join unnest(cast(:ids as bigint[]), cast(:counts_as_attempt as bool[]), cast(:split as bool[]))
                    as b (id, counts_as_attempt, split) on b.id = r.batch_id
                where r.status = 'in_progress' for update of r
            )
            update requests r set status = u.next_status,
                finished_at = case when u.next_status <> 'queued' then clock_timestamp() end,
                error = case when u.next_status = 'failed' then jsonb_build_object('code', 'server_error', 'message',
                    'Given up after ' || r.attempts || ' attempts: each time the worker failed or was lost.') end,
                attempts = r.attempts - case when u.counts_as_attempt then 0 else 1 end,
                planner_epoch = case when u.split then r.planner_epoch else 0 end,
                sealed_group = case when u.split then r.batch_id::text end
            from unanswered u where r.id = u.id
            returning r.id
        """),
        {
            "ids": [batch.batch_id for batch in unfinished],
            "counts_as_attempt": [batch.counts_as_attempt for batch in unfinished],
            "split": [batch.split for batch in unfinished],
            "max_attempts": max_attempts,
        },
    )
    return [row.id for row in rows]
