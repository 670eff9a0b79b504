"""Makes the input of a retry: those lines of an ended bulk job that a second try may answer."""

from collections.abc import Collection
from contextlib import nullcontext

from sqlalchemy.orm import Session, sessionmaker

from models.bulk import bulk_jobs, stored_files
from models.bulk.bulk_tables import ENDED, BulkJob, StoredFile
from protocol.client_errors import InvalidRequest
from webapp.bulk.file_upload import FileSink
from webapp.limits.upload_limits import UploadLimits


def retry_of(
    sessions: sessionmaker[Session],
    parent: BulkJob,
    limits: UploadLimits,
    key: str | None = None,
    digest: bytes | None = None,
) -> BulkJob:
    """Stores the lines of an ended job that a second try may answer; returns the new job, or raises InvalidRequest."""
    if parent.status not in ENDED:
        running = f"The batch is {parent.status.value}. Its lines can be retried once it has ended: wait, or cancel it."
        raise InvalidRequest(running, param="id", code="batch_not_ended")
    file = _stored(sessions, parent, limits)
    return BulkJob(
        tenant=parent.tenant,
        endpoint=parent.endpoint,
        input_file_id=file.id,
        lines=file.lines,
        last_line=file.last_line,
        completion_window=parent.completion_window,
        labels=parent.labels,
        idempotency_key=key,
        idempotency_sha256=digest,
        output_expires_s=parent.output_expires_s,
        parent_id=parent.id,
        service_tier=parent.service_tier,
        budget=parent.budget,
    )


def _stored(sessions: sessionmaker[Session], job: BulkJob, limits: UploadLimits) -> StoredFile:
    with sessions() as session:
        failed = bulk_jobs.unanswered_lines(session, job.id)
    if not failed and job.next_line > job.last_line:
        none = "No line of this batch can be retried: each has an answer, or its call would refuse it again."
        raise InvalidRequest(none, param="id", code="nothing_to_retry")
    sink = FileSink(sessions, job.tenant, f"{job.id}_retry.jsonl", limits, nullcontext())  # the call has a turn
    try:
        first = 1
        for data in stored_files.chunks(sessions, job.input_file_id):
            lines = data.removesuffix(b"\n").split(b"\n")
            sink.write(_chosen(lines, first, failed, job.next_line))
            first += len(lines)
        if first <= job.last_line:
            gone = "The input file of this batch is deleted. Upload the lines again and create a batch of them."
            raise InvalidRequest(gone, param="id", code="input_file_deleted")
        return sink.finish(None)
    except BaseException:
        sink.abandon()
        raise


def _chosen(lines: list[bytes], first: int, failed: Collection[int], unread: int) -> bytes:
    chosen = (line for number, line in enumerate(lines, first) if number in failed or number >= unread)
    return b"".join(line + b"\n" for line in chosen if line.strip())
