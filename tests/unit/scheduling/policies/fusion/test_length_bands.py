import numpy as np
import pytest

from scheduling.costs import ServingCurves
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_bands import (
    LENGTH_STEPS,
    Backlog,
    seconds_per_feature,
    upper_edges,
    work_features,
)
from scheduling.policy import RunningRow, Worker
from tests.unit.scheduling.scheduling_builders import SLOPED, a_memory, a_request


def a_fleet(*lengths: int, speed: float = 1.0) -> FleetArrays:
    """Two workers, each with a row of this length that will end at once; the first is so many times as fast."""
    workers = []
    for number, length in enumerate(lengths):
        rows = (RunningRow(a_request(length=length, predicted=1), 0, 0.0),) if length else ()
        d1, d2, d3, d4 = (d / (1.0 if number else speed) for d in SLOPED.decode)
        workers.append(Worker(f"w{number}", a_memory(15_000), ServingCurves(SLOPED.prefill, (d1, d2, d3, d4)), rows))
    return FleetArrays(workers)


def short_ones(count: int) -> Backlog:
    backlog = Backlog()
    for number in range(count):
        backlog.add(a_request(f"s{number}", length=10, predicted=10))
    return backlog


def test_the_work_of_requests_is_linear_in_their_features() -> None:
    # 100 prefilled, 10 generated: cached tokens 10 · (100 + 5)
    assert work_features(a_request(length=100, predicted=10)) == (1.0, 100, 10, 1050)
    # a row; 0.2 ms a prefilled token; 0.8 ms a generated one; 3 µs a cached one and 43.6 ms over 15,000 of them
    assert seconds_per_feature(a_fleet(0, 0)) == pytest.approx([0.0, 2e-4, 8e-4, 3e-6 + 0.0436 / 15_000])


def test_what_waits_is_counted_by_the_length_that_it_will_have() -> None:
    backlog, request = Backlog(), a_request(length=100, predicted=10)
    backlog.add(request)
    backlog.add(a_request(length=1, predicted=1))
    assert np.count_nonzero(backlog.work_s(a_fleet(0, 0))) == 2
    assert backlog.total() == (2.0, 101.0, 11.0, 1051.5)
    backlog.remove(request)
    assert backlog.total() == (1.0, 1.0, 1.0, 1.5)


def test_half_of_the_work_is_the_band_of_each_of_two_workers() -> None:
    fleet, backlog = a_fleet(0, 0), short_ones(20)
    alike = upper_edges(fleet, backlog.work_s(fleet))
    assert alike[0] == alike[1]
    backlog.add(a_request("long", length=500, predicted=6))  # a little less than half of the work
    edges = upper_edges(fleet, backlog.work_s(fleet))
    assert edges[0] == alike[0]
    assert edges[1] > 506


@pytest.mark.parametrize("lengths", [(20, 500), (500, 20)])
def test_workers_keep_the_order_of_their_lengths(lengths: tuple[int, int]) -> None:
    fleet, backlog = a_fleet(*lengths), short_ones(20)
    backlog.add(a_request("long", length=500, predicted=6))
    edges = upper_edges(fleet, backlog.work_s(fleet))
    assert (edges[0] < edges[1]) == (lengths[0] < lengths[1])


def test_a_faster_worker_has_more_of_the_work() -> None:
    backlog = Backlog()
    for number in range(1, 50):
        backlog.add(a_request(f"r{number}", length=10 * number, predicted=10))
    slow, fast = a_fleet(0, 0), a_fleet(0, 0, speed=4.0)
    assert upper_edges(slow, backlog.work_s(slow))[0] < upper_edges(fast, backlog.work_s(fast))[0]


def test_even_the_longest_have_a_step() -> None:
    backlog = Backlog()
    backlog.add(a_request(length=10**12))
    assert backlog.work_s(a_fleet(0, 0))[LENGTH_STEPS - 1] > 0
