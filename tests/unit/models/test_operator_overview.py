"""The operator's page: a worker's state, and how many requests are queued."""

from datetime import UTC, datetime

import pytest

from models.operator_overview import RequestCounts, WorkerState

ALIVE_S = 10.0


def worker(
    heartbeat_age_s: float,
    *,
    stopped: bool = False,
    deaf: bool = False,
    batch_id: int | None = None,
    fault: str | None = None,
) -> WorkerState:
    return WorkerState(
        name="w1",
        model="small",
        device="cpu",
        theta_bytes=1000,
        delta_bytes=1,
        heartbeat_age_s=heartbeat_age_s,
        stopped=stopped,
        not_consuming=deaf,
        assigned=0,
        batch_id=batch_id,
        size=None,
        length=None,
        predicted_generation_length=None,
        progress_tokens=None,
        estimated_s=None,
        running_s=None,
        fault=fault,
    )


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (worker(1.0), "idle"),
        (worker(1.0, batch_id=7), "running"),
        (worker(10.0, batch_id=7), "running"),  # exactly as old as a heartbeat may be
        (worker(10.1, batch_id=7), "lost"),
        (worker(10.1), "lost"),
        (worker(1.0, deaf=True), "takes_no_messages"),
        (worker(10.1, deaf=True), "lost"),
        (worker(1.0, fault="no answer", batch_id=7), "set_aside"),
        (worker(10.1, fault="no answer"), "lost"),
        (worker(1.0, stopped=True, batch_id=7), "stopped"),
        (worker(99.0, stopped=True), "stopped"),  # it deregistered, so nobody misses its heartbeat
    ],
)
def test_a_workers_state_follows_from_its_heartbeat_its_end_and_its_batch(given: WorkerState, state: str) -> None:
    assert given.state(ALIVE_S) == state


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
