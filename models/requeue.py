"""What becomes of requests that leave their batch unanswered: back to the queue, cancelled, or failed for good."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class Leftover:
    """A batch that ended with requests still in it.

    `counts_as_attempt`: it was a failed attempt at them. `split`: they did not fit together; they stay fed to the planner that
    assigned them, which splits them, and one that takes over later knows them by their sealed group.
    """

    batch_id: int
    counts_as_attempt: bool = False
    split: bool = False


def requeue(connection: Connection, leftovers: Collection[Leftover], max_attempts: int) -> list[str]:
    """Take what is left in these batches out of them; the ids of these requests."""
    if not leftovers:
        return []
    rows = connection.execute(
        text("""
            with stuck as (
                select r.id, b.counts_as_attempt, b.split,
                    case when r.cancel_requested_at is not null then 'cancelled'
                        when b.counts_as_attempt and r.attempts >= :max_attempts then 'failed' else 'queued' end as fate
                from requests r
                join unnest(cast(:ids as bigint[]), cast(:counts_as_attempt as bool[]), cast(:split as bool[]))
                    as b (id, counts_as_attempt, split) on b.id = r.batch_id
                where r.status = 'in_progress' for update of r
            )
            update requests r set status = s.fate,
                finished_at = case when s.fate <> 'queued' then clock_timestamp() end,
                error = case when s.fate = 'failed' then jsonb_build_object('code', 'server_error', 'message',
                    'Given up after ' || r.attempts || ' attempts: each time the worker failed or was lost.') end,
                attempts = r.attempts - case when s.counts_as_attempt then 0 else 1 end,
                planner_epoch = case when s.split then r.planner_epoch else 0 end,
                sealed_group = case when s.split then r.batch_id::text end
            from stuck s where r.id = s.id
            returning r.id
        """),
        {
            "ids": [batch.batch_id for batch in leftovers],
            "counts_as_attempt": [batch.counts_as_attempt for batch in leftovers],
            "split": [batch.split for batch in leftovers],
            "max_attempts": max_attempts,
        },
    )
    return [row.id for row in rows]
