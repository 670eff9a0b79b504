"""Deletes a tenant for `magnus tenant remove`, in short transactions that other work hardly notices."""

from time import monotonic, sleep

from sqlalchemy import Engine

from cli.output import CommandFailed
from models.connections.session import in_transaction, make_sessions
from models.upkeep import tenant_removal

# A worker ends a cancelled request with its next heartbeat, in seconds; a lost worker's lease ends in 15 s. Not tuned.
WAIT_S = 60.0
# Web processes know a deleted key for another second, so that nothing may be stored for this long before the end.
LOOK_AGAIN_S = 1.5


def delete_tenant(engine: Engine, tenant: str, *, cancel: bool) -> None:
    """Deletes all that there is of a tenant; with `cancel` also what waits or runs. Raises CommandFailed.

    Whoever calls it again goes on where it stopped.
    """
    give_up_at = monotonic() + WAIT_S
    while monotonic() < give_up_at:
        with make_sessions(engine)() as session:
            while cancel and tenant_removal.cancel_some(session, tenant):
                pass
        deleted = sum(_delete_all(engine, tenant, table) for table in tenant_removal.PARTS)
        with make_sessions(engine)() as session:
            left = tenant_removal.holdings(session, tenant).unfinished_requests
        if not deleted and not left:
            in_transaction(engine, tenant_removal.end)(tenant)
            return
        sleep(LOOK_AGAIN_S)
    option = "" if cancel else " with --cancel"
    raise CommandFailed(
        f"{left:,} requests of {tenant} wait or run; the rest is deleted: run the command again{option}"
    )


def _delete_all(engine: Engine, tenant: str, table: str) -> int:
    total, delete_some = 0, in_transaction(engine, tenant_removal.delete_some)
    while deleted := delete_some(tenant, table):
        total += deleted
    return total
