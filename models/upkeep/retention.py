"""Deletes old requests, batches, workers and model versions, and texts that clients did not want stored.

When only a request's texts are deleted, its figures stay for usage and history.
"""

from collections.abc import Collection

from sqlalchemy import Connection

from models.client_requests import SIZE
from models.connections.sql import text
from models.tables import ANSWERED, UNANSWERED, UNSTORED

# This many superseded versions of each kind are kept, so that `magnus learned activate` can go back to one. More
# versions would only take space in the database; not tuned.
VERSIONS_KEPT = 5
# Deletes the body's fields that hold the client's text; the other fields say how the answer was generated.
DELETE_TEXTS = """
    update requests set instructions = '', input = '', output_text = null, logprobs = null,
        body = body - cast('{messages,tools,prompt_ids,instructions,format,metadata}' as text[])
"""
OF_NO_JOB = "not exists (select from bulk_lines where bulk_lines.request_id = requests.id)"
# One statement deletes at most this many stored bytes: 64 MiB take some tenths of a second. Not tuned.
MOST_BYTES = 2**26
# The rows of a table that ended long ago, up to the row with which their `size` reaches MOST_BYTES. They are named by
# their addresses, which cannot change while the rows are locked, so that no index is searched a second time.
OLD = """any(array(
    select ctid from (
        select ctid, sum(size) over (order by finished_at, ctid) - size as before from (
            select ctid, finished_at, {size} as size from {table}
            where {ended} and finished_at < statement_timestamp() - make_interval(secs => :after_s)
            order by finished_at limit :limit for update skip locked
        ) as old
    ) as sized where before < :bytes
))"""


def delete_old_requests(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to `limit` answered and `limit` other requests that ended over `retention_s` ago; returns how many.

    Lines of a bulk job stay as long as the job.
    """
    kinds = (f"{ended} and not shared and {OF_NO_JOB}" for ended in (ANSWERED, UNANSWERED))
    return sum(_delete_old(connection, "requests", kind, retention_s, limit) for kind in kinds)


def delete_old_batches(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to `limit` batches that ended longer ago than `retention_s`; returns how many."""
    return _delete_old(connection, "batches", "finished_at is not null", retention_s, limit)


def _delete_old(connection: Connection, table: str, ended: str, retention_s: float, limit: int) -> int:
    old = OLD.format(size=SIZE if table == "requests" else "0", table=table, ended=ended)
    return connection.execute(
        text(f"delete from {table} where ctid = {old}"),  # noqa: S608
        {"after_s": retention_s, "limit": limit, "bytes": MOST_BYTES},
    ).rowcount


def delete_old_workers(connection: Connection, after_s: float) -> int:
    """Deletes workers whose last heartbeat is older than `after_s`; returns how many."""
    return _delete_silent(connection, "workers", after_s)


def delete_old_heartbeats(connection: Connection, after_s: float) -> int:
    """Deletes heartbeats of processes that fell silent longer ago than `after_s`; returns how many."""
    return _delete_silent(connection, "process_heartbeats", after_s)


def _delete_silent(connection: Connection, table: str, after_s: float) -> int:
    old = "heartbeat_at < statement_timestamp() - make_interval(secs => :after_s)"
    return connection.execute(text(f"delete from {table} where {old}"), {"after_s": after_s}).rowcount  # noqa: S608


def delete_superseded_versions(connection: Connection) -> int:
    """Deletes all but the newest VERSIONS_KEPT superseded model versions of each kind; returns how many."""
    return connection.execute(
        text("""
            delete from model_versions where id in (
                select id from (
                    select id, row_number() over (partition by kind order by id desc) as age
                    from model_versions where not active
                ) as superseded where age > :kept
            )
        """),
        {"kept": VERSIONS_KEPT},
    ).rowcount


def delete_unstored_texts(connection: Connection, ids: Collection[str]) -> None:
    """Deletes the texts of the requests with these ids that have ended and are not to be stored."""
    connection.execute(
        text(f"{DELETE_TEXTS} where id = any(cast(:ids as text[])) and finished_at is not null and {UNSTORED}"),
        {"ids": list(ids)},
    )


def delete_old_unstored_texts(connection: Connection, after_s: float, limit: int) -> int:
    """Deletes the texts of up to `limit` unstored requests that ended longer ago than `after_s`; returns how many."""
    return connection.execute(
        text(f"{DELETE_TEXTS} where ctid = {OLD.format(size=SIZE, table='requests', ended=UNSTORED)}"),
        {"after_s": after_s, "limit": limit, "bytes": MOST_BYTES},
    ).rowcount
