"""The overview: how many requests are queued."""

from datetime import UTC, datetime

from models.operations.operator_overview import RequestCounts


def test_a_request_waits_from_its_arrival_until_a_worker_begins_its_batch() -> None:
    counts = RequestCounts(
        now=datetime(2026, 11, 20, tzinfo=UTC),
        unpredicted=1,
        unplanned=20,
        waiting=300,
        unstarted=6000,
        assigned=4000,
        running=50000,
        oldest_s=None,
        finished_minute=0,
        tokens_minute=0,
        workers_alive=0,
    )
    assert counts.queued == 1 + 20 + 300 + 6000
