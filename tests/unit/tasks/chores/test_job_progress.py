"""Which final state a bulk job has come to, by what of it has ended."""

import pytest

from models.bulk.bulk_progress import LineCounts, WatchedJob
from models.bulk.bulk_tables import BulkStatus
from tasks.chores.job_progress import next_status


def a_job(status: BulkStatus, *, all_read: bool = True, expired: bool = False, queued: int = 3) -> WatchedJob:
    return WatchedJob("batch_1", "acme", "/v1/responses", status, all_read, expired, queued, None, None)


ALL_DONE, ONE_RUNS, ONE_UNSERVED = LineCounts(3, 0, 0, 0), LineCounts(2, 0, 1, 0), LineCounts(2, 0, 0, 1)
IN_PROGRESS, CANCELLING = BulkStatus.in_progress, BulkStatus.cancelling


@pytest.mark.parametrize(
    ("job", "counts", "status"),
    [
        (a_job(IN_PROGRESS), ALL_DONE, BulkStatus.completed),
        (a_job(IN_PROGRESS), ONE_RUNS, None),
        (a_job(IN_PROGRESS, all_read=False), ALL_DONE, None),
        (a_job(IN_PROGRESS, expired=True), ONE_RUNS, None),
        (a_job(IN_PROGRESS, expired=True), ONE_UNSERVED, BulkStatus.expired),
        (a_job(IN_PROGRESS, expired=True, all_read=False), ALL_DONE, BulkStatus.expired),
        (a_job(IN_PROGRESS, expired=True), ALL_DONE, BulkStatus.completed),
        (a_job(CANCELLING, all_read=False), ONE_RUNS, None),
        (a_job(CANCELLING, all_read=False), ONE_UNSERVED, BulkStatus.cancelled),
        (a_job(BulkStatus.validating, queued=0), LineCounts(0, 3, 0, 0), BulkStatus.failed),
        (a_job(BulkStatus.validating, queued=0, all_read=False), LineCounts(0, 2, 0, 0), None),
    ],
)
def test_a_job_ends_once_nothing_of_it_is_unfinished(
    job: WatchedJob, counts: LineCounts, status: BulkStatus | None
) -> None:
    assert next_status(job, counts) == status
