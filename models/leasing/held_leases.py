"""Checks which leases of a worker are still valid before it writes, and whether a call waits for answers."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from models.leasing.leases import Lease
from models.notifications import AWAITED, AWAITED_S
from models.sql import text


@dataclass(frozen=True, slots=True)
class HeldLeases:
    """Leases that are valid until the transaction ends; `awaited`: some call waits for requests to end."""

    leases: frozenset[Lease]
    awaited: bool


def lock_held(connection: Connection, leases: Collection[Lease]) -> HeldLeases:
    """Returns the leases among these that are still valid; their batches stay locked until the transaction ends."""
    rows = connection.execute(
        text("""
            select b.id, b.fence, exists(
                select from service_state where name = :awaited
                    and updated_at > statement_timestamp() - make_interval(secs => :awaited_s)
            ) as awaited
            from batches b
            join unnest(cast(:ids as bigint[]), cast(:fences as int[])) as l (id, fence) using (id, fence)
            where b.status = 'running' order by b.id for update of b
        """),
        {
            "ids": [lease.batch_id for lease in leases],
            "fences": [lease.fence for lease in leases],
            "awaited": AWAITED,
            "awaited_s": AWAITED_S,
        },
    ).all()
    return HeldLeases(frozenset(Lease(row.id, row.fence) for row in rows), any(row.awaited for row in rows))
