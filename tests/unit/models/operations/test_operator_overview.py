"""The overview: how many requests are queued."""

from datetime import UTC, datetime

from models.operations.operator_overview import RequestCounts


def test_a_request_is_queued_whether_or_not_it_was_predicted_and_fetched_by_the_planner() -> None:
    counts = RequestCounts(
        now=datetime(2026, 11, 20, tzinfo=UTC),
        unpredicted=1,
        unplanned=20,
        waiting=300,
        assigned=4000,
        running=50000,
        oldest_s=None,
        finished_minute=0,
        tokens_minute=0,
        workers_alive=0,
    )
    assert counts.queued == 1 + 20 + 300
