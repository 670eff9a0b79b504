import numpy as np

from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import LengthBuckets, WaitingRequest
from scheduling.policies.fusion.worker_reservation import WorkerReservation, fits_soonest
from scheduling.policy import RunningRow, Worker
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_paged_worker, a_request, a_row, a_worker


def running(tokens: int, *rows: tuple[int, int]) -> Worker:
    """Rows of (cached, remaining) tokens."""
    made = tuple(
        RunningRow(a_request(f"r{n}", length=cached, predicted=left), 0, 0.0) for n, (cached, left) in enumerate(rows)
    )
    return Worker(f"w{tokens}", a_memory(tokens), FLAT, made)


def test_only_the_request_that_it_is_reserved_for_may_join_a_reserved_worker() -> None:
    fleet, reservation, buckets = FleetArrays([a_worker("a"), a_worker("b")]), WorkerReservation(), LengthBuckets()
    for name, length in (("small", 5), ("big", 100)):
        buckets.add(WaitingRequest(a_request(name, length=length)))
    reservation.reserve(fleet, a_request("big", length=100))
    assert (bool(reservation), reservation.request_id) == (True, "big")
    key = np.zeros((2, 2))
    reservation.exclude_others(fleet, np.array([0, 1]), buckets, key)
    assert key.tolist() == [[np.inf, 0.0], [0.0, 0.0]]
    key = np.zeros((1, 2))
    reservation.exclude_others(fleet, np.array([1]), buckets, key)
    assert key.tolist() == [[0.0, 0.0]]


def test_no_request_may_join_a_worker_reserved_for_a_request_that_is_not_the_first_of_its_bucket() -> None:
    fleet, reservation, buckets = FleetArrays([a_worker("a")]), WorkerReservation(), LengthBuckets()
    for name, at in (("first", 0.0), ("second", 1.0)):
        buckets.add(WaitingRequest(a_request(name, at=at)))
    reservation.reserve(fleet, a_request("second", at=1.0))
    key = np.zeros((1, 1))
    reservation.exclude_others(fleet, np.array([0]), buckets, key)
    assert key.tolist() == [[np.inf]]


def test_without_a_reservation_or_its_worker_no_request_is_excluded() -> None:
    fleet, reservation, key = FleetArrays([a_worker("a")]), WorkerReservation(), np.zeros((1, 1))
    reservation.exclude_others(fleet, np.array([0]), LengthBuckets(), key)
    reservation.reserve(fleet, a_request())
    elsewhere = FleetArrays([a_worker("b")])
    assert (reservation.worker_in(fleet), reservation.worker_in(elsewhere)) == (True, False)
    reservation.exclude_others(elsewhere, np.array([0]), LengthBuckets(), key)
    reservation.release()
    assert not reservation
    reservation.exclude_others(fleet, np.array([0]), LengthBuckets(), key)
    assert key.tolist() == [[0.0]]


def test_a_large_request_fits_soonest_where_what_is_left_ends_first() -> None:
    slow = running(1000, (100, 500), (100, 400))
    quick = running(1001, (100, 300), (100, 30), (100, 20))
    # beside the row that is left with 300 to come, 2 · 400 fit after 30 iterations
    assert fits_soonest(FleetArrays([slow, quick]), 300.0, 100.0) == 1
    assert fits_soonest(FleetArrays([slow, running(1001)]), 300.0, 100.0) == 1  # nothing runs there
    assert fits_soonest(FleetArrays([running(500), quick]), 900.0, 100.0) == 1  # where nothing runs it would never fit


def test_in_paged_memory_it_fits_once_the_rows_left_leave_its_own_tokens() -> None:
    rows = [a_row("short", length=100, generated=0, predicted=30), a_row("long", length=100, generated=0, predicted=90)]
    # beside both at most 130 + 130 + 60, so 330 hold it at once; 260 hold it beside the long one, after 30 iterations
    at_once, later = a_paged_worker(330, rows, name="at once"), a_paged_worker(260, rows, name="later")
    assert fits_soonest(FleetArrays([later, at_once]), 50.0, 10.0) == 1
    full = a_paged_worker(330, rows, max_rows=2, name="full")
    assert fits_soonest(FleetArrays([full, at_once]), 50.0, 10.0) == 1
