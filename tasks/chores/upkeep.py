"""The work of `tasks.upkeep` in short transactions: samples the service, stores each minute, deletes old rows."""

from collections.abc import Callable
from functools import partial
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from models.bulk import bulk_jobs, stored_files
from models.connections.database_errors import is_unreachable
from models.connections.session import in_session, make_sessions
from models.operations import minute_history, promise_book, request_histograms, service_history
from models.tenants import usage
from models.upkeep import retention
from models.webhooks import webhook_deliveries

# One transaction deletes at most this many rows. A larger chunk holds its locks for longer and deletes no faster:
# 31,000 rows a second in chunks of 2,000 and of 5,000, at most 0.25 and 0.45 s a chunk on a machine with a load of 20.
DELETED_AT_ONCE = 2000
# One transaction adds up at most this many entries of usage; a worker writes up to fifty a second. Not tuned.
FOLDED_AT_ONCE = 10_000
SETTLED_AT_ONCE = 1000  # one transaction settles at most this many promises. Not tuned
# Each part of the upkeep takes at most this many of the 10 seconds between two ticks. The next tick goes on, so that
# ticks do not pile up behind a backlog. Not tuned otherwise.
PART_FOR_S = 2.0
# A worker that stopped a day ago is dropped from the table; until then the dashboard still shows it. Not tuned.
FORGET_WORKERS_AFTER_S = 86_400.0
# The heartbeat of a process that was killed is kept this long; its successor writes a heartbeat of its own. Not tuned.
FORGET_PROCESSES_AFTER_S = 600.0
# An answer that its client does not want stored is deleted once it is sent, or after this long if the client has left.
# Not tuned.
FORGET_UNSTORED_AFTER_S = 600.0

log = structlog.get_logger()


def do_upkeep(engine: Engine, retention_s: float) -> None:
    """Samples, stores minutes, sums up usage, deletes what ended over `retention_s` ago; each part in PART_FOR_S."""
    sessions = make_sessions(engine)

    def repeated(chunk: Callable[[Session], int], full: int) -> Callable[[], object]:
        return partial(repeat, in_session(sessions, chunk), full, PART_FOR_S)

    deletions = (  # chunks before files and lines before jobs, so that no statement deletes rows that it does not count
        stored_files.delete_old_chunks,
        stored_files.delete_old_files,
        bulk_jobs.delete_old_lines,
        bulk_jobs.delete_old_jobs,
        retention.delete_old_requests,
        retention.delete_old_batches,
        webhook_deliveries.delete_old,
        promise_book.delete_old,
    )
    do_each(
        in_session(sessions, service_history.take_samples),
        repeated(minute_history.close_minutes, minute_history.MOST_MINUTES),
        in_session(sessions, minute_history.fold_totals),
        repeated(lambda session: usage.fold(session, FOLDED_AT_ONCE), FOLDED_AT_ONCE),
        partial(repeat, partial(_settle, engine), SETTLED_AT_ONCE, PART_FOR_S),
        in_session(sessions, promise_book.warn_of_risks),
        repeated(request_histograms.count_ended, 1),
        partial(_forget, engine),
        *(partial(_delete, engine, delete, retention_s) for delete in deletions),
    )


def do_each(*parts: Callable[[], object]) -> None:
    """Does each part, also if others fail; raises the first error at the end, or at once if no database is reached."""
    first: Exception | None = None
    for part in parts:
        try:
            part()
        except Exception as error:  # whatever it is, it must not hold up the other parts
            if first is not None:
                log.error("upkeep failed", error=next(iter(str(error).splitlines()), type(error).__name__))
            first = first or error
            if is_unreachable(error):
                break
    if first is not None:
        raise first


def repeat(chunk: Callable[[], int], full: int, for_s: float) -> int:
    """Calls `chunk` until it returns less than `full` or `for_s` seconds are over; returns the sum of its results."""
    until, total = monotonic() + for_s, 0
    while (done := chunk()) >= full and monotonic() < until:
        total += done
    return total + done


def _settle(engine: Engine) -> int:
    with engine.begin() as connection:
        return promise_book.settle(connection, SETTLED_AT_ONCE)


def _forget(engine: Engine) -> None:
    with engine.begin() as connection:
        retention.delete_old_workers(connection, FORGET_WORKERS_AFTER_S)
        retention.delete_old_heartbeats(connection, FORGET_PROCESSES_AFTER_S)
        retention.delete_superseded_versions(connection)
        retention.delete_old_unstored_texts(connection, FORGET_UNSTORED_AFTER_S, DELETED_AT_ONCE)


def _delete(engine: Engine, delete: Callable[[Connection, float, int], int], retention_s: float) -> None:
    deleted = repeat(partial(_delete_chunk, engine, delete, retention_s), 1, PART_FOR_S)
    if deleted:
        log.info("deleted", what=delete.__name__, rows=deleted)


def _delete_chunk(engine: Engine, delete: Callable[[Connection, float, int], int], retention_s: float) -> int:
    with engine.begin() as connection:
        return delete(connection, retention_s, DELETED_AT_ONCE)
