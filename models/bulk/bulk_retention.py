"""Deletes old files and bulk jobs; called by the upkeep task."""

from sqlalchemy import Connection

from models.sql import text

UPLOAD_WITHIN_S = 86_400.0  # an upload that has not ended after a day was broken off. Any value above a slow one does


def delete_old_jobs(connection: Connection, retention_s: float, limit: int) -> int:
    """Delete up to `limit` jobs that ended longer ago than `retention_s`, with lines and results; returns how many.

    Their requests are then deleted as any others.
    """
    deleted = connection.execute(
        text("""
            delete from bulk_jobs where id in (
                select id from bulk_jobs where greatest(completed_at, failed_at, expired_at, cancelled_at)
                    < statement_timestamp() - make_interval(secs => :retention_s)
                limit :limit for update skip locked
            ) returning id
        """),
        {"retention_s": retention_s, "limit": limit},
    ).scalars()
    ids = list(deleted)
    if ids:
        connection.execute(text("delete from files where job_id = any(:ids)"), {"ids": ids})
    return len(ids)


def delete_old_files(connection: Connection, retention_s: float, limit: int) -> int:
    """Delete up to `limit` files: deleted or expired ones, old ones, uploads that were broken off; returns how many.

    A file whose lines a bulk job has still to read stays until it has read them.
    """
    return connection.execute(
        text("""
            delete from files where id in (
                select f.id from files f
                where (f.deleted_at is not null or f.expires_at < statement_timestamp()
                        or f.bytes is null and f.created_at < statement_timestamp() - make_interval(secs => :upload_s)
                        or f.job_id is null and f.created_at
                            < statement_timestamp() - make_interval(secs => :retention_s))
                    and not exists (
                        select from bulk_jobs j where j.input_file_id = f.id and j.next_line <= j.last_line
                            and j.status in ('validating', 'in_progress', 'finalizing', 'cancelling')
                    )
                limit :limit for update skip locked
            )
        """),
        {"retention_s": retention_s, "upload_s": UPLOAD_WITHIN_S, "limit": limit},
    ).rowcount
