import numpy as np

from scheduling.policies.fusion.admission import candidate_workers, fits, fits_now, fits_one, fits_soonest
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import Heads, WaitingRequest
from scheduling.policy import RunningRow, Worker
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_request


def running(tokens: int, *rows: tuple[int, int]) -> Worker:
    """Rows of (cached, remaining) tokens."""
    made = tuple(
        RunningRow(a_request(f"r{n}", length=cached, predicted=left), 0, 0.0) for n, (cached, left) in enumerate(rows)
    )
    return Worker(f"w{tokens}", a_memory(tokens), FLAT, made)


def heads(*requests: tuple[int, int]) -> Heads:
    return Heads.of([WaitingRequest(a_request(f"h{n}", length=p, predicted=r)) for n, (p, r) in enumerate(requests)])


def test_rows_and_joiner_must_fit_padded_to_the_longest() -> None:
    fleet = FleetArrays([running(130, (40, 10)), running(84, (40, 10)), running(83, (40, 10))])
    # two rows of 40 + 2 tokens; a joiner of 60 pads both to 62
    two = heads((10, 5), (60, 5))
    assert fits_now(fleet, two, np.arange(3)).tolist() == [[True, True], [True, False], [False, False]]


def test_an_idle_worker_takes_what_it_holds_to_its_end_and_the_largest_anything() -> None:
    fleet = FleetArrays([running(100), running(200)])
    three = heads((60, 30), (60, 50), (60, 500))
    assert fits_now(fleet, three, np.arange(2)).tolist() == [[True, False, False], [True, True, True]]
    assert fits(fleet, three, np.array([1]), np.array([0]), np.array([2])).tolist() == [True]
    for worker, fitting in enumerate(([True, False, False], [True, True, True])):
        assert [fits_one(fleet, worker, a_request(length=60, predicted=more)) for more in (30, 50, 500)] == fitting


def test_the_predicted_future_must_fit() -> None:
    fleet = FleetArrays([running(120, (40, 10))])
    # 2 · 50 when both end; then 10 + 110 alone; 121; 2 · 61
    for (length, predicted), expected in (((10, 10), True), ((10, 110), True), ((10, 111), False), ((51, 10), False)):
        one = np.array([0])
        assert fits(fleet, heads((length, predicted)), one, one, one).tolist() == [expected]
        assert fits_one(fleet, 0, a_request(length=length, predicted=predicted)) == expected


def test_only_workers_with_room_for_the_least_of_all_are_looked_at() -> None:
    fleet = FleetArrays([running(84, (40, 10)), running(83, (40, 10)), running(99, (40, 10)), running(100, (40, 10))])
    assert candidate_workers(fleet, heads((10, 90), (60, 2))).tolist() == [0, 2, 3]  # 2 · (40 + 2) at once
    assert candidate_workers(fleet, heads((10, 90), (60, 10))).tolist() == [3]  # 2 · (40 + 10) before both end
    assert candidate_workers(FleetArrays([running(12), running(11)]), heads((10, 90))).tolist() == [0]


def test_a_large_request_fits_soonest_where_what_is_left_ends_first() -> None:
    slow = running(1000, (100, 500), (100, 400))
    quick = running(1001, (100, 300), (100, 30), (100, 20))
    # beside the row that is left with 300 to come, 2 · 400 fit after 30 iterations
    assert fits_soonest(FleetArrays([slow, quick]), 300.0, 100.0) == 1
    assert fits_soonest(FleetArrays([slow, running(1001)]), 300.0, 100.0) == 1  # nothing runs there
    assert fits_soonest(FleetArrays([running(500), quick]), 900.0, 100.0) == 1  # where nothing runs it would never fit
