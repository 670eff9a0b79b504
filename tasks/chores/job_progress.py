"""The progress of bulk jobs: counts ended lines, applies a job's changes to its waiting lines, ends jobs."""

from functools import partial
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine

from models.bulk import bulk_progress
from models.bulk.bulk_jobs import pages_of_ended_lines
from models.bulk.bulk_progress import CHANGED_AT_ONCE, LineCounts, WatchedJob
from models.bulk.bulk_tables import BulkStatus, FilePurpose
from models.connections.session import in_transaction, make_sessions
from protocol.bulk.result_lines import EndingJob, result_lines
from tasks.chores.upkeep import repeat

CHANGE_FOR_S = 5.0  # one check changes a job's requests for at most this long; the next one continues. Not tuned

MEASURED_FOR_S = 2.0  # one check adds up sizes of results for at most this long; the next one continues. Not tuned
MEASURED = (BulkStatus.completed, BulkStatus.expired)  # before it gets one of these states, a job is `finalizing`

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
    """Update the job that has been due for longest; returns False if none is due."""
    began = monotonic()
    with engine.begin() as connection:
        job = bulk_progress.take_job(connection)
        if job is None:
            return False
        counts = bulk_progress.count_lines(connection, job.id)
        job = bulk_progress.write_counts(connection, job, counts, monotonic() - began)
        status = next_status(job, counts)
        if status in MEASURED and job.status is not BulkStatus.finalizing:  # from now on, no call changes the job
            bulk_progress.set_status(connection, job.id, job.status, BulkStatus.finalizing)
            return True  # the next check ends the job
    if status is None:
        change = bulk_progress.stop_lines if job.stopped else bulk_progress.tell_lines if job.untold else None
        if change is not None:
            repeat(partial(in_transaction(engine, change), job.id), CHANGED_AT_ONCE, CHANGE_FOR_S)
        return True
    measured = all(_measured(engine, job, status, purpose) for purpose in (FilePurpose.output, FilePurpose.error))
    with engine.begin() as connection:
        if measured:
            _end(connection, job, status)
        else:
            bulk_progress.check_now(connection, job.id)
    return True


def _measured(engine: Engine, job: WatchedJob, status: BulkStatus, purpose: FilePurpose) -> bool:
    """Adds up sizes of result lines, which no longer change, for MEASURED_FOR_S; returns whether all are added up."""
    file_id = job.output_file_id if purpose is FilePurpose.output else job.error_file_id
    if file_id is None:
        return True
    after = last = in_transaction(engine, bulk_progress.measured_line)(file_id)
    ending, size, until, whole = EndingJob(job.id, job.endpoint, status), 0, monotonic() + MEASURED_FOR_S, True
    for page in pages_of_ended_lines(make_sessions(engine), job.id, purpose, after):
        size += sum(map(len, result_lines(ending, [page])))
        last, whole = page[-1].line, monotonic() < until
        if not whole:
            break
    in_transaction(engine, bulk_progress.add_size)(file_id, after, last, size)
    return whole


def _end(connection: Connection, job: WatchedJob, status: BulkStatus) -> None:
    errors = bulk_progress.first_errors(connection, job.id) if status is BulkStatus.failed else None
    if bulk_progress.set_status(connection, job.id, job.status, status, errors):
        bulk_progress.let_results_expire(connection, job.id)
        log.info("batch ended", job=job.id, status=status.value)
