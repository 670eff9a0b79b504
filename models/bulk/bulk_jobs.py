"""Bulk jobs as clients handle them: create, fetch, list, cancel. The background work is in `bulk_work`."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.bulk.bulk_tables import UNENDED, BulkJob, BulkStatus, StoredFile
from models.client_requests import IdempotencyKeyReused
from models.sql import text

CANCELLABLE = (BulkStatus.validating, BulkStatus.in_progress)


@dataclass(frozen=True, slots=True)
class NewBulkJob:
    """A validated bulk job on its way into the database; its window in seconds and as the client wrote it."""

    tenant: str
    endpoint: str
    file: StoredFile
    completion_window: str
    window_s: float
    metadata: Mapping[str, str] | None
    idempotency_key: str | None = None
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class BulkPage:
    """One page of a list; `more` says whether there is a next one."""

    jobs: list[BulkJob]
    more: bool


def create_job(session: Session, new: NewBulkJob) -> BulkJob:
    """Store a bulk job; a tenant's second call with the same idempotency key returns the first job.

    Raises IdempotencyKeyReused if the second call's digest is another.
    """
    inserted: BulkJob | None = session.scalar(
        insert(BulkJob)
        .values(
            id=f"batch_{uuid.uuid4().hex}",
            tenant=new.tenant,
            idempotency_key=new.idempotency_key,
            idempotency_sha256=new.digest,
            endpoint=new.endpoint,
            input_file_id=new.file.id,
            completion_window=new.completion_window,
            labels=None if new.metadata is None else dict(new.metadata),
            lines=new.file.lines,
            last_line=new.file.last_line,
            expires_at=func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, new.window_s),
        )
        .on_conflict_do_nothing(
            index_elements=["tenant", "idempotency_key"], index_where=text("idempotency_key is not null")
        )
        .returning(BulkJob)
    )
    session.commit()
    if inserted is not None:
        return inserted
    earlier = session.scalars(
        select(BulkJob).where(BulkJob.tenant == new.tenant, BulkJob.idempotency_key == new.idempotency_key)
    ).one()
    if earlier.idempotency_sha256 != new.digest:
        raise IdempotencyKeyReused(earlier.id)
    return earlier


def unended_jobs(session: Session, tenant: str) -> int:
    """How many jobs of this tenant have not ended."""
    count = select(func.count()).select_from(BulkJob).where(text(UNENDED), BulkJob.tenant == tenant)
    return session.scalar(count) or 0


def any_unended(connection: Connection) -> bool:
    """Whether any tenant has a job that has not ended."""
    return connection.scalar(select(BulkJob.id).where(text(UNENDED)).limit(1)) is not None


def fetch_job(session: Session, tenant: str, job_id: str) -> BulkJob | None:
    """A bulk job of this tenant."""
    return session.scalar(select(BulkJob).where(BulkJob.id == job_id, BulkJob.tenant == tenant))


def job_of_results(session: Session, tenant: str, file_id: str) -> BulkJob | None:
    """The bulk job whose output or errors this file has."""
    return session.scalar(
        select(BulkJob)
        .join(StoredFile, StoredFile.job_id == BulkJob.id)
        .where(StoredFile.id == file_id, StoredFile.tenant == tenant)
    )


def job_page(session: Session, tenant: str, *, after: str | None = None, limit: int = 20) -> BulkPage | None:
    """Bulk jobs, newest first, beginning behind the job `after`; None if this tenant has no such job."""
    listed = select(BulkJob).where(BulkJob.tenant == tenant)
    if after is not None:
        cursor = fetch_job(session, tenant, after)
        if cursor is None:
            return None
        listed = listed.where(tuple_(BulkJob.created_at, BulkJob.id) < (cursor.created_at, cursor.id))
    jobs = list(session.scalars(listed.order_by(BulkJob.created_at.desc(), BulkJob.id.desc()).limit(limit + 1)))
    return BulkPage(jobs[:limit], len(jobs) > limit)


def cancel_job(session: Session, tenant: str, job_id: str) -> None:
    """Have a job cancelled that has not ended; what it has done stays."""
    session.execute(
        update(BulkJob)
        .where(BulkJob.id == job_id, BulkJob.tenant == tenant, BulkJob.status.in_(CANCELLABLE))
        .values(status=BulkStatus.cancelling, cancelling_at=func.clock_timestamp())
        .execution_options(synchronize_session=False)
    )
    session.commit()
