"""Creates, fetches, lists, pauses and cancels bulk jobs for clients; reads their results; deletes old jobs."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, tuple_, update
from sqlalchemy.orm import Session, sessionmaker

from models.bulk.bulk_tables import UNENDED, BulkJob, BulkStatus, FilePurpose, StoredFile
from models.client_requests import SIZE, Page, RequestView, read_views, select_whole_views
from models.connections.sql import text
from models.new_requests import IdempotencyKeyReused, sell
from models.promise_tables import WITHDRAW, Promise, StoredPromise
from models.tables import StoredRequest
from models.tenants.tenant_limits import check_alone
from scheduling.request import ServiceTier

NOW = func.clock_timestamp()
# A page of results has at most this many answers, and at most this many bytes as they are stored, compressed. A larger
# page delays other calls of the process for longer if answers are large, and saves statements if they are small.
PAGE_ANSWERS, PAGE_BYTES = 25, 2**18
# A tenant has at most this many unended jobs. Each is read once a second and may have 50,000 lines. Not tuned.
MOST_UNENDED = 100
CHANGEABLE = (BulkStatus.validating, BulkStatus.in_progress)


class TooManyJobs(Exception):
    """The tenant has reached the number of unended jobs that it may have."""


class FileDeleted(Exception):
    """The file was deleted before the job could be made from it."""


def create_job(session: Session, job: BulkJob, window_s: float, promise: Promise | None = None) -> BulkJob:
    """Stores a bulk job under a new id; a tenant's second call with the same idempotency key returns the first job.

    Its window begins now; `promise` is that of an accepted quote. Raises IdempotencyKeyReused (another digest),
    TooManyJobs, FileDeleted, and QuoteUsed.
    """
    check_alone(session, job.tenant, "bulk jobs")
    earlier = job_of_key(session, job.tenant, job.idempotency_key, job.idempotency_sha256)
    if earlier is not None:
        return earlier
    unended = select(func.count()).select_from(BulkJob).where(text(UNENDED), BulkJob.tenant == job.tenant)
    if (session.scalar(unended) or 0) >= MOST_UNENDED:
        raise TooManyJobs
    # The file is locked, so that it cannot be deleted with its lines before the job is stored.
    locked = select(NOW).where(StoredFile.id == job.input_file_id, StoredFile.deleted_at.is_(None))
    now = session.scalar(locked.with_for_update(read=True))
    if now is None:
        raise FileDeleted
    job.id, job.expires_at = f"batch_{uuid.uuid4().hex}", now + timedelta(seconds=window_s)
    session.add(job)
    session.flush()
    if promise is not None:
        sell(session.connection(), promise, job.id, job.tenant, job.service_tier, job.created_at)
    session.commit()
    return job


def promises_of(session: Session, jobs: Iterable[BulkJob]) -> dict[str, StoredPromise]:
    """Returns the promises of those jobs that accepted a quote, by job."""
    sold = session.scalars(select(StoredPromise).where(StoredPromise.request_id.in_([job.id for job in jobs])))
    return {one.request_id: one for one in sold}


def job_of_key(session: Session, tenant: str, key: str | None, digest: bytes | None) -> BulkJob | None:
    """Returns the job that an earlier call with this key made; raises IdempotencyKeyReused if the digests differ."""
    if key is None:
        return None
    earlier = session.scalar(select(BulkJob).where(BulkJob.tenant == tenant, BulkJob.idempotency_key == key))
    if earlier is not None and earlier.idempotency_sha256 != digest:
        raise IdempotencyKeyReused(earlier.id)
    return earlier


def any_unended(connection: Connection) -> bool:
    """Returns whether any tenant has a job that has not ended."""
    return connection.scalar(select(BulkJob.id).where(text(UNENDED)).limit(1)) is not None


def fetch_job(session: Session, tenant: str, job_id: str) -> BulkJob | None:
    """Returns a bulk job of this tenant that is not being deleted."""
    return session.scalar(_jobs_of(tenant).where(BulkJob.id == job_id))


def _jobs_of(tenant: str) -> Select[BulkJob]:
    return select(BulkJob).where(BulkJob.tenant == tenant, BulkJob.deleted_at.is_(None))


def newest_jobs(session: Session, limit: int) -> Sequence[BulkJob]:
    """Returns the newest bulk jobs of all tenants."""
    kept = select(BulkJob).where(BulkJob.deleted_at.is_(None))
    return session.scalars(kept.order_by(BulkJob.created_at.desc(), BulkJob.id.desc()).limit(limit)).all()


def job_of_results(session: Session, tenant: str, file_id: str) -> BulkJob | None:
    """Returns the bulk job whose output or errors are in this file, or None if the file holds no results."""
    return session.scalar(
        _jobs_of(tenant)
        .join(StoredFile, StoredFile.job_id == BulkJob.id)
        .where(StoredFile.id == file_id, StoredFile.tenant == tenant)
    )


def job_page(session: Session, tenant: str, *, after: str | None = None, limit: int = 20) -> Page[BulkJob] | None:
    """Returns bulk jobs, newest first, beginning behind the job `after`, or None if this tenant has no job `after`."""
    listed = _jobs_of(tenant)
    if after is not None:
        cursor = fetch_job(session, tenant, after)
        if cursor is None:
            return None
        listed = listed.where(tuple_(BulkJob.created_at, BulkJob.id) < (cursor.created_at, cursor.id))
    jobs = list(session.scalars(listed.order_by(BulkJob.created_at.desc(), BulkJob.id.desc()).limit(limit + 1)))
    return Page(jobs[:limit], len(jobs) > limit)


def cancel_job(session: Session, tenant: str, job_id: str) -> bool:
    """Marks a job as cancelling; the process `chores` then cancels its unanswered lines."""
    return _change(session, tenant, job_id, status=BulkStatus.cancelling, cancelling_at=NOW)


def pause_job(session: Session, tenant: str, job_id: str) -> bool:
    """Pauses a job: no waiting line is served and no further line is read; lines in progress are still answered."""
    return _change(session, tenant, job_id, paused_at=func.coalesce(BulkJob.paused_at, NOW))


def resume_job(session: Session, tenant: str, job_id: str) -> bool:
    """Lets the lines of a paused job be served again."""
    return _change(session, tenant, job_id, paused_at=None)


def change_job(
    session: Session,
    tenant: str,
    job_id: str,
    window: str | None = None,
    window_s: float | None = None,
    tier: ServiceTier | None = None,
    budget: Mapping[str, Any] | None = None,
) -> bool:
    """Gives a job another window, counted from its creation, tier or budget; False also if that window is over."""
    values: dict[str, Any] = {name: one for name, one in (("service_tier", tier), ("budget", budget)) if one}
    if window_s is None:
        return _change(session, tenant, job_id, **values)
    end = BulkJob.created_at + timedelta(seconds=window_s)
    values |= {"completion_window": window, "expires_at": end}
    return _change(session, tenant, job_id, end > NOW, **values)


def _change(session: Session, tenant: str, job_id: str, *also: ColumnElement[bool], **values: Any) -> bool:
    """Changes a job that has lines to serve, and makes its next check due now; returns False without such a job."""
    lines_follow = bool(values.keys() & {"paused_at", "service_tier", "expires_at"})
    if lines_follow:
        values["untold"] = True
    changed = session.scalar(
        update(BulkJob)
        .where(BulkJob.id == job_id, BulkJob.tenant == tenant, BulkJob.status.in_(CHANGEABLE), *also)
        .values(look_at=NOW, **values)
        .returning(BulkJob)
        .execution_options(synchronize_session=False)
    )
    if changed is not None and (lines_follow or changed.budget_spent):
        session.execute(text(WITHDRAW), {"id": job_id})
    session.commit()
    return changed is not None


def unanswered_lines(session: Session, job_id: str) -> set[int]:
    """Returns the numbers of lines that ended without an answer, except lines that their call would refuse again."""
    rows = session.execute(
        text("""
            select distinct l.line from bulk_lines l
            left join lateral (select status from requests where id = l.request_id offset 0) r on true
            where l.job_id = :job and (r.status in ('failed', 'cancelled')
                or l.request_id is null and (l.error->>'status')::int not in (400, 413))
        """),
        {"job": job_id},
    )
    return {row.line for row in rows}


ENDED_LINES = {
    FilePurpose.output: "r.answered",
    FilePurpose.error: "not r.answered and not r.unfinished",
    None: "not r.unfinished",
}


@dataclass(frozen=True, slots=True)
class EndedLine:
    """A line that has ended, with those of its requests that still exist; an invalid line has an error instead."""

    line: int
    custom_id: str | None
    request_ids: Sequence[str]
    error: dict[str, Any] | None
    views: Sequence[RequestView]


def pages_of_ended_lines(
    sessions: sessionmaker[Session], job_id: str, purpose: FilePurpose | None, after: int = 0
) -> Iterator[Sequence[EndedLine]]:
    """Yields pages of the ended lines behind `after`, in the order of the input: all, or those of one results file.

    Holds no connection between two pages.
    """
    while True:
        with sessions() as session:
            page = ended_lines(session, job_id, purpose, after, PAGE_ANSWERS)
        if not page:
            return
        yield page
        after = page[-1].line


def ended_lines(
    session: Session, job_id: str, purpose: FilePurpose | None, after: int, limit: int
) -> Sequence[EndedLine]:
    """Returns the file's next line after `after`, and more while they have at most `limit` requests and PAGE_BYTES."""
    rows = session.execute(
        text(f"""
            select line, custom_id, error, ids, (
                select coalesce(sum({SIZE}), 0) from requests where id = any(ids)
            ) as bytes from (
                select l.line, (array_agg(l.custom_id order by l.choice))[1] as custom_id,
                    (array_agg(l.error order by l.choice))[1] as error,
                    array_remove(array_agg(l.request_id order by l.choice), null) as ids,
                    bool_and(coalesce(q.status in ('completed', 'incomplete'), false)) as answered,
                    bool_or(coalesce(q.status in ('queued', 'in_progress'), false)) as unfinished
                from bulk_lines l
                left join lateral (select status from requests where id = l.request_id offset 0) q on true
                where l.job_id = :job and l.line > :after group by l.line
            ) r where {ENDED_LINES[purpose]} order by line limit :most
        """),  # noqa: S608  # one of three constants
        {"job": job_id, "after": after, "most": limit},
    ).all()
    counts, sizes = accumulate(len(row.ids) for row in rows), accumulate(row.bytes for row in rows)
    fits = [count <= limit and size <= PAGE_BYTES for count, size in zip(counts, sizes, strict=True)]
    rows = [row for number, row in enumerate(rows) if not number or fits[number]]
    ids = [request_id for row in rows for request_id in row.ids]
    found = read_views(session, select_whole_views().where(StoredRequest.id.in_(ids))) if ids else ()
    views = {view.request.id: view for view in found}
    return [
        EndedLine(row.line, row.custom_id, row.ids, row.error, [views[one] for one in row.ids if one in views])
        for row in rows
    ]


OLD_JOBS = """
    select id from bulk_jobs where greatest(completed_at, failed_at, expired_at, cancelled_at)
        < statement_timestamp() - make_interval(secs => :retention_s)
"""


# Hides a job and its files; its idempotency key is then free for another job.
HIDE = """
    with hidden as (
        update bulk_jobs set deleted_at = clock_timestamp(), idempotency_key = null
        where id = :job and deleted_at is null returning id
    )
    update files set deleted_at = clock_timestamp() from hidden where job_id = hidden.id and deleted_at is null
"""


def delete_old_lines(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to `limit` lines of a job that ended over `retention_s` ago, but not their requests; returns how many.

    Hides the job and its files first, because its results would lack the deleted lines.
    """
    with_lines = text(f"{OLD_JOBS} and exists (select from bulk_lines where job_id = bulk_jobs.id) limit 1")
    if (job_id := connection.scalar(with_lines, {"retention_s": retention_s})) is None:
        return 0
    connection.execute(text(HIDE), {"job": job_id})
    return connection.execute(
        text("""
            delete from bulk_lines where job_id = :job and line <= (
                select max(line) from (select line from bulk_lines where job_id = :job order by line limit :limit) as l
            )
        """),
        {"job": job_id, "limit": limit},
    ).rowcount


def delete_old_jobs(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to `limit` jobs that ended over `retention_s` ago and have no line any more; returns the number."""
    deleted = connection.execute(
        text(f"""
            delete from bulk_jobs where id in (
                {OLD_JOBS} and not exists (select from bulk_lines where job_id = bulk_jobs.id)
                limit :limit for update skip locked
            ) returning id
        """),  # noqa: S608  # a constant
        {"retention_s": retention_s, "limit": limit},
    ).scalars()
    ids = list(deleted)
    if ids:
        connection.execute(text("delete from files where job_id = any(:ids)"), {"ids": ids})
    return len(ids)
