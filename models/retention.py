"""The upkeep's queries: what is old enough to go."""

from sqlalchemy import Connection, text

VERSIONS_KEPT = 5  # of each kind, besides the one in service


def delete_old_requests(connection: Connection, retention_s: float, limit: int) -> int:
    """Delete up to `limit` requests that ended longer ago than `retention_s`; how many."""
    return connection.execute(
        text("""
            delete from requests where id in (
                select id from requests where finished_at < statement_timestamp() - make_interval(secs => :retention_s)
                order by finished_at limit :limit for update skip locked
            )
        """),
        {"retention_s": retention_s, "limit": limit},
    ).rowcount


def delete_old_batches(connection: Connection, retention_s: float, limit: int) -> int:
    """Delete up to `limit` batches that ended longer ago than `retention_s`; how many."""
    return connection.execute(
        text("""
            delete from batches where id in (
                select id from batches where finished_at < statement_timestamp() - make_interval(secs => :retention_s)
                order by finished_at limit :limit for update skip locked
            )
        """),
        {"retention_s": retention_s, "limit": limit},
    ).rowcount


def forget_workers(connection: Connection, after_s: float) -> int:
    """Delete workers that have not been heard of for so long; how many."""
    return connection.execute(
        text("delete from workers where heartbeat_at < statement_timestamp() - make_interval(secs => :after_s)"),
        {"after_s": after_s},
    ).rowcount


def delete_superseded_versions(connection: Connection) -> int:
    """Delete all but the last few superseded model versions of each kind; how many."""
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
