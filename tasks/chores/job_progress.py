"""The progress of bulk jobs: counts ended lines, applies a job's changes to its waiting lines, ends jobs."""

from collections.abc import Callable
from functools import partial
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine

from models.bulk import bulk_progress
from models.bulk.bulk_progress import CHANGED_AT_ONCE, LineCounts, WatchedJob
from models.bulk.bulk_tables import BulkStatus, FilePurpose
from models.session import make_sessions
from tasks.chores.upkeep import repeat
from webapp.bulk.result_lines import EndingJob, result_lines

CHANGE_FOR_S = 5.0  # longest time to change requests, 2,000 at a time; the next check continues. Not tuned

log = structlog.get_logger()


def next_status(job: WatchedJob, counts: LineCounts) -> BulkStatus | None:
    """Returns the final state that a job has reached, or None while a line is unfinished."""
    if counts.unfinished:
        return None
    if job.status is BulkStatus.cancelling:
        return BulkStatus.cancelled
    if job.expired and (counts.unserved or not job.all_read):
        return BulkStatus.expired
    if not job.all_read:
        return None
    return BulkStatus.completed if job.queued else BulkStatus.failed


def update_jobs(engine: Engine, for_s: float) -> None:
    """Update every job that is due, for at most `for_s` seconds."""
    until = monotonic() + for_s
    while update_next_job(engine) and monotonic() < until:
        pass


def update_next_job(engine: Engine) -> bool:
    """Update the job that is due for longest; returns False if none is due."""
    began = monotonic()
    with engine.begin() as connection:
        job = bulk_progress.take_job(connection)
        if job is None:
            return False
        counts = bulk_progress.count_lines(connection, job.id)
        job = bulk_progress.write_counts(connection, job, counts, monotonic() - began)
        status = next_status(job, counts)
        if status is BulkStatus.completed and job.status is not BulkStatus.finalizing:
            bulk_progress.set_status(connection, job.id, job.status, BulkStatus.finalizing)
            return True  # the next check ends it
    if status is None:
        change = bulk_progress.stop_lines if job.stopped else bulk_progress.tell_lines if job.untold else None
        if change is not None:
            repeat(partial(_change_some, engine, change, job.id), CHANGED_AT_ONCE, CHANGE_FOR_S)
        return True
    _end(engine, job, status)
    return True


def _change_some(engine: Engine, change: Callable[[Connection, str], int], job_id: str) -> int:
    with engine.begin() as connection:
        return change(connection, job_id)


def _end(engine: Engine, job: WatchedJob, status: BulkStatus) -> None:
    """Set a job's final state and store the sizes of its results, which no longer change."""
    sizes = {}
    for file_id, purpose in ((job.output_file_id, FilePurpose.output), (job.error_file_id, FilePurpose.error)):
        if file_id is not None:
            pieces = result_lines(make_sessions(engine), EndingJob(job.id, job.endpoint, status), purpose)
            sizes[file_id] = sum(map(len, pieces))
    with engine.begin() as connection:
        errors = bulk_progress.first_errors(connection, job.id) if status is BulkStatus.failed else None
        if bulk_progress.set_status(connection, job.id, job.status, status, errors):
            bulk_progress.write_sizes(connection, sizes)
            log.info("batch ended", job=job.id, status=status.value)
