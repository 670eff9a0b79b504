"""Positions and estimates come from the planner's snapshot, and from nothing else."""

from datetime import UTC, datetime, timedelta

from models.client_requests import RequestView
from models.queue_position import QueuePlace, place, queue_snapshot_of
from models.tables import RequestStatus, StoredBatch, StoredRequest

NOW = datetime(2026, 11, 20, 21, 10, tzinfo=UTC)
STATE = {
    "waiting": 4,
    "backlog_s": 9.0,
    "batches": [
        {"ids": ["a", "b"], "size": 2, "starts_in_s": 0.0, "estimated_s": 3.0},
        {"ids": ["c"], "size": 2, "starts_in_s": 3.0, "estimated_s": 5.0},  # the snapshot names only the first
        {"ids": ["e"], "size": 1, "starts_in_s": 8.0, "estimated_s": 1.0},
    ],
}
ROOM = queue_snapshot_of(STATE, NOW)


def seen(id: str, status: str = "queued", batch: StoredBatch | None = None) -> RequestView:
    return RequestView(StoredRequest(id=id, status=RequestStatus(status)), batch, 0, NOW)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_those_in_earlier_batches_go_first_and_a_batch_ends_at_once() -> None:
    assert place(seen("a"), ROOM) == QueuePlace(1, later(3))
    assert place(seen("b"), ROOM) == QueuePlace(2, later(3))
    assert place(seen("c"), ROOM) == QueuePlace(3, later(8))
    assert place(seen("e"), ROOM) == QueuePlace(5, later(9))


def test_who_is_not_named_comes_behind_everything_that_the_planner_knows() -> None:
    # 9 s until a worker is free for it, and a batch takes (3 + 5 + 1) / 3 s on average
    assert place(seen("new"), ROOM) == QueuePlace(None, later(12))


def test_without_a_snapshot_nothing_is_known() -> None:
    assert place(seen("a"), None) == QueuePlace(None, None)


def test_a_running_batch_ends_when_it_was_estimated_to_and_never_in_the_past() -> None:
    fresh = StoredBatch(
        id=1, estimated_s=4.0, started_at=NOW - timedelta(seconds=1), assigned_at=NOW - timedelta(seconds=2)
    )
    late = StoredBatch(id=2, estimated_s=1.0, started_at=None, assigned_at=NOW - timedelta(seconds=9))
    assert place(seen("a", "in_progress", fresh), ROOM) == QueuePlace(None, later(3))
    assert place(seen("a", "in_progress", late), ROOM) == QueuePlace(None, NOW)
    assert place(seen("a", "in_progress"), ROOM) == QueuePlace()


def test_a_final_request_has_no_place() -> None:
    assert place(seen("a", "completed"), ROOM) == QueuePlace()


def test_an_empty_waiting_room_promises_the_next_free_worker() -> None:
    empty = queue_snapshot_of({"waiting": 0, "backlog_s": 0.5, "batches": []}, NOW)
    assert place(seen("new"), empty) == QueuePlace(None, later(0.5))
