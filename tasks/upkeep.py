"""The task `tasks.upkeep`: every 10 s it closes the history's minutes and deletes old rows, in short transactions."""

from collections.abc import Callable
from functools import cache
from time import monotonic

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models import minute_history, retention
from models.session import make_engine, make_sessions
from tasks.app import app, database_url, settings

# Rows that one transaction deletes. A larger chunk holds its locks for longer, a smaller one pays for more commits; any
# value from 500 to 5,000 does.
DELETED_AT_ONCE = 2000
# Seconds of each tick's 10 that one chore may take: what is left waits for the next tick, so that a backlog after a
# pause neither delays the predictor, which shares the process, nor piles ticks up. Not tuned otherwise.
CHORE_FOR_S = 2.0
# A worker that stopped a day ago is dropped from the table; until then the dashboard still shows it. Not tuned.
FORGET_WORKERS_AFTER_S = 86_400.0

log = structlog.get_logger()


@cache
def database() -> Engine:
    """This process's database connection for upkeep."""
    return make_engine(database_url, pool_size=1, name="magnus upkeep")


@app.task(name="tasks.upkeep", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def upkeep() -> None:
    """Do each chore for a while; an error is logged, and the next tick tries again."""
    try:
        do_chores(database(), settings.retention_s)
    except SQLAlchemyError as error:
        log.error("upkeep failed", error=str(error))


def do_chores(engine: Engine, retention_s: float, chore_for_s: float = CHORE_FOR_S) -> None:
    """Close minutes, then delete what ended longer than `retention_s` ago; each kind for `chore_for_s` at most."""
    with make_sessions(engine)() as session:
        repeat(lambda: minute_history.close_minutes(session), minute_history.MOST_MINUTES, chore_for_s)
        minute_history.fold_totals(session)
    with engine.begin() as connection:
        retention.delete_old_workers(connection, FORGET_WORKERS_AFTER_S)
        retention.delete_superseded_versions(connection)
    for delete in (retention.delete_old_requests, retention.delete_old_batches):

        def delete_chunk(delete: Callable[..., int] = delete) -> int:
            with engine.begin() as connection:
                return delete(connection, retention_s, DELETED_AT_ONCE)

        deleted = repeat(delete_chunk, DELETED_AT_ONCE, chore_for_s)
        if deleted:
            log.info("deleted", what=delete.__name__, rows=deleted)


def repeat(chunk: Callable[[], int], full: int, for_s: float) -> int:
    """Do chunks until one is not `full`, or until `for_s` have passed; returns the sum of what they did."""
    until, total = monotonic() + for_s, 0
    while (done := chunk()) >= full and monotonic() < until:
        total += done
    return total + done
