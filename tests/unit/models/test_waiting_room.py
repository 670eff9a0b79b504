"""Positions and estimates come from the planner's snapshot, and from nothing else."""

from datetime import UTC, datetime, timedelta

from models.queue import Place, place, waiting_room
from models.responses import Seen
from models.tables import Batch, Request, RequestStatus

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
ROOM = waiting_room(STATE, NOW)


def seen(id: str, status: str = "queued", batch: Batch | None = None) -> Seen:
    return Seen(Request(id=id, status=RequestStatus(status)), batch, 0, NOW)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_those_in_earlier_batches_go_first_and_a_batch_ends_at_once() -> None:
    assert place(seen("a"), ROOM) == Place(1, later(3))
    assert place(seen("b"), ROOM) == Place(2, later(3))
    assert place(seen("c"), ROOM) == Place(3, later(8))
    assert place(seen("e"), ROOM) == Place(5, later(9))


def test_who_is_not_named_comes_behind_everything_that_the_planner_knows() -> None:
    # 9 s until a worker is free for it, and a batch takes (3 + 5 + 1) / 3 s on average
    assert place(seen("new"), ROOM) == Place(None, later(12))


def test_without_a_snapshot_nothing_is_known() -> None:
    assert place(seen("a"), None) == Place(None, None)


def test_a_running_batch_ends_when_it_was_estimated_to_and_never_in_the_past() -> None:
    fresh = Batch(id=1, estimated_s=4.0, started_at=NOW - timedelta(seconds=1), assigned_at=NOW - timedelta(seconds=2))
    late = Batch(id=2, estimated_s=1.0, started_at=None, assigned_at=NOW - timedelta(seconds=9))
    assert place(seen("a", "in_progress", fresh), ROOM) == Place(None, later(3))
    assert place(seen("a", "in_progress", late), ROOM) == Place(None, NOW)
    assert place(seen("a", "in_progress"), ROOM) == Place()


def test_a_final_request_has_no_place() -> None:
    assert place(seen("a", "completed"), ROOM) == Place()


def test_an_empty_waiting_room_promises_the_next_free_worker() -> None:
    empty = waiting_room({"waiting": 0, "backlog_s": 0.5, "batches": []}, NOW)
    assert place(seen("new"), empty) == Place(None, later(0.5))
