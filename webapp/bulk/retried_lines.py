"""Makes the input of a retry: those lines of an ended bulk job that a second try may answer."""

from collections.abc import Collection

from sqlalchemy.orm import Session, sessionmaker

from models.bulk import bulk_jobs, stored_files
from models.bulk.bulk_tables import BulkJob, StoredFile
from webapp.bulk.file_upload import FileSink, UploadLimits
from webapp.client_errors import InvalidRequest


def store_retry(sessions: sessionmaker[Session], job: BulkJob, limits: UploadLimits) -> StoredFile:
    """Stores the lines that failed, were not served or were not read as a file of the tenant; raises InvalidRequest.

    Lines that their call would refuse again are left out.
    """
    with sessions() as session:
        failed = bulk_jobs.unanswered_lines(session, job.id)
    if not failed and job.next_line > job.last_line:
        none = "No line of this batch can be retried: each has an answer, or its call would refuse it again."
        raise InvalidRequest(none, param="id", code="nothing_to_retry")
    sink = FileSink(sessions, job.tenant, f"{job.id}_retry.jsonl", limits)
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
