""" """

from dataclasses import replace

import numpy as np
import pytest

from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policies.fusion.delay_cost import (
    LENGTH_STEPS,
    Backlog,
    DelayedRequests,
    delay_s,
    seconds_per_feature,
    upper_edges,
    work_features,
)
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policy import RunningRow, Worker
from tests.unit.scheduling.scheduling_builders import SLOPED, a_memory, a_request


def a_fleet(*lengths: int, speed: float = 1.0) -> FleetArrays:
    """Workers with one row each, of these lengths, that will end at once; the first worker is `speed` times as fast."""
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


def one_worker_with(*rows: int) -> FleetArrays:
    running = tuple(RunningRow(a_request(f"r{n}", length=length), 0, 0.0) for n, length in enumerate(rows))
    return FleetArrays([Worker("w", a_memory(10_000), SLOPED, running)])


def delay(fleet: FleetArrays, prefill: int, remaining: int, elsewhere: float = 0.0, edge: float = 1e9) -> float:
    seconds = delay_s(
        fleet,
        DelayedRequests(np.array([elsewhere]), np.array([edge])),
        np.array([0]),
        np.array([float(prefill)]),
        np.array([float(remaining)]),
    )
    return float(seconds[0, 0])


def test_alone_a_row_delays_itself_by_its_serving_time() -> None:
    # prefill 100 · 0.2 + 43.6 ms; ten iterations of 43.6 + 0.8 + 105 · 0.003 ms
    assert delay(one_worker_with(), 100, 10) == pytest.approx(0.0636 + 10 * 0.044715)


def test_the_rows_beside_it_wait_for_its_prefill_and_longer_iterations() -> None:
    # joiner: iterations of 43.6 + 2 · (0.8 + 105 · 0.003); the other: its prefill and what the second row adds
    expected = (0.0636 + 10 * 0.04583) + (0.0636 + 10 * 0.001115)
    assert delay(one_worker_with(100), 100, 10) == pytest.approx(expected)


def test_a_longer_row_pads_those_beside_it() -> None:
    # as beside rows of 600, an iteration is of three rows of 605; but two of them had 105 before: 2 · 500 · 3 µs more
    # for each of the two others in each of ten iterations
    beside_short, beside_long = delay(one_worker_with(100, 100), 600, 10), delay(one_worker_with(600, 600), 600, 10)
    assert beside_short - beside_long == pytest.approx(10 * 2 * 2 * 500 * 3e-6)


def test_a_second_joiner_shares_the_prefill_of_the_first() -> None:
    fleet = one_worker_with(100)
    before = delay(fleet, 100, 10)
    fleet.join(0, a_request("joiner", length=100))
    assert delay(fleet, 100, 10) < before


def test_requests_elsewhere_lose_the_worker_for_the_joiners_share_of_the_iterations() -> None:
    token_s = 3e-6 + 0.0436 / 10_000
    fleet = one_worker_with()
    taken = delay(fleet, 100, 10, elsewhere=1.0, edge=110.0) - delay(fleet, 100, 10)
    assert taken == pytest.approx(0.02 + 10 * (0.0008 + token_s * 105))
    # in a band of longer rows it is padded to them, in one of shorter rows it pads them
    beside_long = delay(fleet, 100, 10, elsewhere=1.0, edge=1110.0) - delay(fleet, 100, 10)
    assert beside_long - taken == pytest.approx(10 * token_s * 1000)
    beside_short = delay(fleet, 100, 10, elsewhere=1.0, edge=50.0) - delay(fleet, 100, 10)
    assert beside_short - taken == pytest.approx(10 * token_s * 60)


def paged(*rows: int) -> FleetArrays:
    (worker,) = one_worker_with(*rows).workers
    return FleetArrays([replace(worker, memory=KvMemory(10_000, 1, paged=True))])


def test_in_paged_memory_a_row_costs_its_own_tokens_whatever_it_joins() -> None:
    # alone as in rectangular memory; beside one of 100 the joiner's iterations read 600 + 100, not 2 · 600
    assert delay(paged(), 100, 10) == pytest.approx(delay(one_worker_with(), 100, 10))
    own_s, other_s = 0.0436 + 2 * 0.0008 + 3e-6 * (605 + 105), 0.0008 + 3e-6 * 605
    assert delay(paged(100), 600, 10) == pytest.approx(2 * (0.0436 + 0.12) + 10 * (own_s + other_s))


def test_elsewhere_a_paged_joiner_takes_no_more_than_its_tokens_whatever_the_band() -> None:
    token_s = 3e-6 + 0.0436 / 10_000
    taken = delay(paged(), 100, 10, elsewhere=1.0, edge=1110.0) - delay(paged(), 100, 10)
    assert taken == pytest.approx(0.02 + 10 * (0.0008 + token_s * 105))


def test_in_a_mixed_fleet_each_worker_has_its_own_price() -> None:
    (padded_one,), (paged_one,) = one_worker_with(100).workers, paged(100).workers
    both = FleetArrays([padded_one, replace(paged_one, name="paged")])
    delayed = DelayedRequests(np.zeros(2), np.array([1e9, 1e9]))
    seconds = delay_s(both, delayed, np.array([0, 1]), np.array([600.0]), np.array([10.0]))
    assert seconds[:, 0].tolist() == pytest.approx([delay(one_worker_with(100), 600, 10), delay(paged(100), 600, 10)])


def test_elsewhere_a_row_takes_as_much_on_a_slow_worker_as_on_a_fast_one() -> None:
    (slow,) = paged().workers
    fast_costs = ServingCurves(*(tuple(one / 4 for one in curve) for curve in (SLOPED.prefill, SLOPED.decode)))  # type: ignore[arg-type]  # four coefficients each
    fleet = FleetArrays([slow, replace(slow, name="fast", costs=fast_costs)])
    assert fleet.speed_share().tolist() == pytest.approx([0.2, 0.8])

    def prices(requests: float) -> list[float]:
        delayed = DelayedRequests(requests * fleet.speed_share(), np.array([1e9, 1e9]))
        seconds = delay_s(fleet, delayed, np.array([0, 1]), np.array([100.0]), np.array([10.0]))
        return [float(one) for one in seconds[:, 0]]

    (slow_alone_s, fast_alone_s), (slow_s, fast_s) = prices(0.0), prices(20.0)
    assert slow_alone_s == pytest.approx(4 * fast_alone_s)  # the row itself ends four times as late
    assert slow_s - slow_alone_s == pytest.approx(fast_s - fast_alone_s)
