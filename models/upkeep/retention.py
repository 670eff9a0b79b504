"""Deletes old requests, batches, workers and model versions, and texts that clients did not want stored.

When only a request's texts are deleted, its figures stay for usage and history.
"""

from collections.abc import Collection

from sqlalchemy import Connection

from models.sql import text
from models.tables import ANSWERED, UNANSWERED, UNSTORED

# Superseded versions of each kind that are kept, so that `magnus models activate` can go back to one. More of them only
# take space in the database; not tuned.
VERSIONS_KEPT = 5
# The body's fields with the client's text; the others say how the answer was generated.
DELETE_TEXTS = """
    update requests set instructions = '', input = '', output_text = null, logprobs = null,
        body = body - cast('{messages,tools,prompt_ids,instructions,format,metadata}' as text[])
"""
OF_NO_JOB = "not exists (select from bulk_lines where bulk_lines.request_id = requests.id)"


def delete_old_requests(connection: Connection, retention_s: float, limit: int) -> int:
    """Delete `limit` answered and as many other requests that ended over `retention_s` ago; returns how many.

    Lines of a bulk job stay as long as the job.
    """
    kinds = (f"{ended} and {OF_NO_JOB}" for ended in (ANSWERED, UNANSWERED))
    return sum(_delete_old(connection, "requests", kind, retention_s, limit) for kind in kinds)


def delete_old_batches(connection: Connection, retention_s: float, limit: int) -> int:
    """Delete up to `limit` batches that ended longer ago than `retention_s`; returns how many."""
    return _delete_old(connection, "batches", "finished_at is not null", retention_s, limit)


def _delete_old(connection: Connection, table: str, ended: str, retention_s: float, limit: int) -> int:
    # Deletes by the rows' addresses, which cannot change while they are locked: no index is searched a second time.
    return connection.execute(
        text(f"""
            delete from {table} where ctid = any(array(
                select ctid from {table}
                where {ended} and finished_at < statement_timestamp() - make_interval(secs => :retention_s)
                order by finished_at limit :limit for update skip locked
            ))
        """),  # noqa: S608
        {"retention_s": retention_s, "limit": limit},
    ).rowcount


def delete_old_workers(connection: Connection, after_s: float) -> int:
    """Delete workers whose last heartbeat is older than `after_s`; returns how many."""
    return connection.execute(
        text("delete from workers where heartbeat_at < statement_timestamp() - make_interval(secs => :after_s)"),
        {"after_s": after_s},
    ).rowcount


def delete_old_heartbeats(connection: Connection, after_s: float) -> int:
    """Delete heartbeats of processes that fell silent longer ago than `after_s`; returns how many."""
    return connection.execute(
        text("""
            delete from process_heartbeats
            where heartbeat_at < statement_timestamp() - make_interval(secs => :after_s)
        """),
        {"after_s": after_s},
    ).rowcount


def delete_superseded_versions(connection: Connection) -> int:
    """Delete all but the newest VERSIONS_KEPT superseded model versions of each kind; returns how many."""
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
    """Delete the texts of those of these requests that have ended and are not to be stored."""
    connection.execute(
        text(f"{DELETE_TEXTS} where id = any(cast(:ids as text[])) and finished_at is not null and {UNSTORED}"),
        {"ids": list(ids)},
    )


def delete_old_unstored_texts(connection: Connection, after_s: float, limit: int) -> int:
    """Delete the texts of up to `limit` unstored requests that ended longer ago than `after_s`; returns how many."""
    return connection.execute(
        text(f"""
            {DELETE_TEXTS} where ctid = any(array(
                select ctid from requests
                where {UNSTORED} and finished_at < statement_timestamp() - make_interval(secs => :after_s)
                order by finished_at limit :limit for update skip locked
            ))
        """),  # noqa: S608
        {"after_s": after_s, "limit": limit},
    ).rowcount
