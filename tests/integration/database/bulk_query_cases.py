"""The cases of `models.bulk`, as `query_cases` has those of the other modules."""

from sqlalchemy import Connection

from models.bulk import bulk_feed, bulk_jobs, bulk_outlook, bulk_progress, stored_files
from models.bulk.bulk_feed import NewLine
from models.bulk.bulk_progress import LineCounts
from models.bulk.bulk_tables import BulkJob, BulkStatus, FilePurpose
from models.operations import bulk_figures
from tests.integration.database.full_database import INPUT, JOB, LINES
from tests.integration.database.query_cases import DAY, FEW, OPEN, Case, a_new_request, on_session


def create_job_twice(connection: Connection) -> None:
    for _ in range(2):
        job = BulkJob(tenant="tenant-0", endpoint="/v1/responses", input_file_id=INPUT, lines=LINES, last_line=LINES)
        job.completion_window, job.idempotency_key, job.idempotency_sha256 = "24h", "a key", b""
        on_session(bulk_jobs.create_job, job, DAY)(connection)


def write_a_line(connection: Connection) -> None:
    job = bulk_feed.read_step(connection, JOB)
    assert job
    locked = bulk_feed.lock_step(connection, job)
    assert locked
    bulk_feed.write_lines(connection, locked, [NewLine(901, "new", [a_new_request()])], 902)


def write_counts(connection: Connection) -> None:
    job = bulk_progress.take_job(connection)
    assert job
    bulk_progress.write_counts(connection, job, LineCounts(1, 1, 1, 1), 0.1)


def upload(connection: Connection) -> None:
    file_id = str(on_session(stored_files.begin_upload, "tenant-0", "f")(connection))
    on_session(stored_files.add_chunk, "tenant-0", file_id, 1, b"{}", 2**40)(connection)
    on_session(stored_files.finish_upload, file_id, 2, 1, 1, None)(connection)
    on_session(stored_files.abandon_upload, file_id)(connection)


A_JOB = 3 * LINES  # rows of a job: its lines and their requests
BULK_CASES = [
    Case("bulk_jobs.any_unended", bulk_jobs.any_unended),
    Case("stored_files.begin_upload", on_session(stored_files.begin_upload, "tenant-0", "f")),
    Case("stored_files.add_chunk", upload, 1000 + FEW),
    Case("stored_files.finish_upload", upload, 1000 + FEW),
    Case("stored_files.abandon_upload", upload, 1000 + FEW),
    Case("stored_files.fetch_file", on_session(stored_files.fetch_file, "tenant-0", INPUT)),
    Case("stored_files.file_page", on_session(stored_files.file_page, "tenant-0", after=INPUT)),
    Case("stored_files.delete_file", on_session(stored_files.delete_file, "tenant-0", INPUT)),
    Case("stored_files.stored_bytes", on_session(stored_files.stored_bytes, "tenant-0"), 1000 + FEW),
    Case("stored_files.next_chunk", on_session(stored_files.next_chunk, INPUT, 0)),
    Case("stored_files.first_lines", on_session(stored_files.first_lines, INPUT)),
    Case("bulk_outlook.read_bulk_outlook", on_session(bulk_outlook.read_bulk_outlook, "small", 10.0), 1000 + FEW),
    Case("bulk_outlook.unended_work", bulk_outlook.unended_work),
    Case("bulk_jobs.create_job", create_job_twice),
    Case("bulk_jobs.promises_of", on_session(bulk_jobs.promises_of, [BulkJob(id=JOB)])),
    Case("bulk_jobs.fetch_job", on_session(bulk_jobs.fetch_job, "tenant-0", JOB)),
    Case("bulk_jobs.job_of_results", on_session(bulk_jobs.job_of_results, "tenant-0", INPUT)),
    Case("bulk_jobs.job_page", on_session(bulk_jobs.job_page, "tenant-0", after=JOB)),
    Case("bulk_jobs.cancel_job", on_session(bulk_jobs.cancel_job, "tenant-0", JOB)),
    Case("bulk_jobs.job_of_key", on_session(bulk_jobs.job_of_key, "tenant-0", "a key", b"")),
    Case("bulk_jobs.unanswered_lines", on_session(bulk_jobs.unanswered_lines, JOB), A_JOB),
    Case("bulk_jobs.pause_job", on_session(bulk_jobs.pause_job, "tenant-0", JOB)),
    Case("bulk_jobs.resume_job", on_session(bulk_jobs.resume_job, "tenant-0", JOB)),
    Case("bulk_jobs.change_job", on_session(bulk_jobs.change_job, "tenant-0", JOB, "7d", 7 * DAY, "default")),
    Case("bulk_feed.begin_step", lambda c: bulk_feed.begin_step(c, ["nobody"])),
    Case("bulk_feed.others_are_served", bulk_feed.others_are_served, OPEN),
    Case("bulk_feed.read_step", lambda c: bulk_feed.read_step(c, JOB)),
    Case("bulk_feed.lock_step", write_a_line),
    Case("bulk_feed.taken_names", lambda c: bulk_feed.taken_names(c, JOB, ["line-7", "new"])),
    Case("bulk_feed.write_lines", write_a_line),
    Case("bulk_feed.end_step", lambda c: bulk_feed.end_step(c, JOB, 500), A_JOB),
    Case("bulk_progress.take_job", bulk_progress.take_job),
    Case("bulk_progress.stop_lines", lambda c: bulk_progress.stop_lines(c, JOB), A_JOB),
    Case("bulk_progress.tell_lines", lambda c: bulk_progress.tell_lines(c, JOB), 2 * A_JOB),
    Case("bulk_progress.count_lines", lambda c: bulk_progress.count_lines(c, JOB), A_JOB),
    Case("bulk_progress.first_errors", lambda c: bulk_progress.first_errors(c, JOB), LINES),
    Case("bulk_progress.write_counts", write_counts),
    Case(
        "bulk_progress.set_status",
        lambda c: bulk_progress.set_status(c, JOB, BulkStatus.in_progress, BulkStatus.failed, [{"line": 1}]),
    ),
    Case("bulk_progress.measured_line", lambda c: bulk_progress.measured_line(c, INPUT)),
    Case("bulk_progress.add_size", lambda c: bulk_progress.add_size(c, INPUT, 0, 3, 7)),
    Case("bulk_progress.check_now", lambda c: bulk_progress.check_now(c, JOB)),
    Case("bulk_progress.let_results_expire", lambda c: bulk_progress.let_results_expire(c, JOB)),
    Case(
        "bulk_jobs.ended_lines",
        on_session(bulk_jobs.ended_lines, JOB, FilePurpose.output, 450, 100),
        5 * 100 + FEW,
        "output",
    ),
    Case("bulk_jobs.ended_lines", on_session(bulk_jobs.ended_lines, JOB, FilePurpose.error, 0, 100), A_JOB, "errors"),
    Case("bulk_figures.bulk_figures", on_session(bulk_figures.bulk_figures, JOB), A_JOB + LINES),
    Case("bulk_jobs.delete_old_jobs", lambda c: bulk_jobs.delete_old_jobs(c, DAY, 500), 1000 + FEW),
    Case("bulk_jobs.delete_old_lines", lambda c: bulk_jobs.delete_old_lines(c, DAY, 500), 1000 + FEW),
    Case("stored_files.delete_old_chunks", lambda c: stored_files.delete_old_chunks(c, DAY, 500), 4000),
    Case("stored_files.delete_old_files", lambda c: stored_files.delete_old_files(c, DAY, 500), 4000),
]
