from dataclasses import replace

import numpy as np
import pytest

from scheduling.kv_memory import KvMemory
from scheduling.policies.fusion.delay_cost import DelayedRequests, delay_s
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policy import RunningRow, Worker
from tests.unit.scheduling.scheduling_builders import SLOPED, a_memory, a_request


def a_fleet(*rows: int) -> FleetArrays:
    running = tuple(RunningRow(a_request(f"r{n}", length=length), 0, 0.0) for n, length in enumerate(rows))
    return FleetArrays([Worker("w", a_memory(10_000), SLOPED, running)])


def delay(fleet: FleetArrays, prefill: int, remaining: int, elsewhere: float = 0.0, edge: float = 1e9) -> float:
    seconds = delay_s(
        fleet,
        DelayedRequests(elsewhere, np.array([edge])),
        np.array([0]),
        np.array([float(prefill)]),
        np.array([float(remaining)]),
    )
    return float(seconds[0, 0])


def test_alone_a_row_delays_itself_by_its_serving_time() -> None:
    # prefill 100 · 0.2 + 43.6 ms; ten iterations of 43.6 + 0.8 + 105 · 0.003 ms
    assert delay(a_fleet(), 100, 10) == pytest.approx(0.0636 + 10 * 0.044715)


def test_the_rows_beside_it_wait_for_its_prefill_and_longer_iterations() -> None:
    # joiner: iterations of 43.6 + 2 · (0.8 + 105 · 0.003); the other: its prefill and what the second row adds
    expected = (0.0636 + 10 * 0.04583) + (0.0636 + 10 * 0.001115)
    assert delay(a_fleet(100), 100, 10) == pytest.approx(expected)


def test_a_longer_row_pads_those_beside_it() -> None:
    # as beside rows of 600, an iteration is of three rows of 605; but two of them had 105 before: 2 · 500 · 3 µs more
    # for each of the two others in each of ten iterations
    beside_short, beside_long = delay(a_fleet(100, 100), 600, 10), delay(a_fleet(600, 600), 600, 10)
    assert beside_short - beside_long == pytest.approx(10 * 2 * 2 * 500 * 3e-6)


def test_a_second_joiner_shares_the_prefill_of_the_first() -> None:
    fleet = a_fleet(100)
    before = delay(fleet, 100, 10)
    fleet.join(0, a_request("joiner", length=100))
    assert delay(fleet, 100, 10) < before


def test_requests_elsewhere_lose_the_worker_for_the_joiners_share_of_the_iterations() -> None:
    token_s = 3e-6 + 0.0436 / 10_000
    fleet = a_fleet()
    taken = delay(fleet, 100, 10, elsewhere=1.0, edge=110.0) - delay(fleet, 100, 10)
    assert taken == pytest.approx(0.02 + 10 * (0.0008 + token_s * 105))
    # in a band of longer rows it is padded to them, in one of shorter rows it pads them
    beside_long = delay(fleet, 100, 10, elsewhere=1.0, edge=1110.0) - delay(fleet, 100, 10)
    assert beside_long - taken == pytest.approx(10 * token_s * 1000)
    beside_short = delay(fleet, 100, 10, elsewhere=1.0, edge=50.0) - delay(fleet, 100, 10)
    assert beside_short - taken == pytest.approx(10 * token_s * 60)


def paged(*rows: int) -> FleetArrays:
    (worker,) = a_fleet(*rows).workers
    return FleetArrays([replace(worker, memory=KvMemory(10_000, 1, paged=True))])


def test_in_paged_memory_a_row_costs_its_own_tokens_whatever_it_joins() -> None:
    # alone as in rectangular memory; beside one of 100 the joiner's iterations read 600 + 100, not 2 · 600
    assert delay(paged(), 100, 10) == pytest.approx(delay(a_fleet(), 100, 10))
    own_s, other_s = 0.0436 + 2 * 0.0008 + 3e-6 * (605 + 105), 0.0008 + 3e-6 * 605
    assert delay(paged(100), 600, 10) == pytest.approx(2 * (0.0436 + 0.12) + 10 * (own_s + other_s))


def test_elsewhere_a_paged_joiner_takes_no_more_than_its_tokens_whatever_the_band() -> None:
    token_s = 3e-6 + 0.0436 / 10_000
    taken = delay(paged(), 100, 10, elsewhere=1.0, edge=1110.0) - delay(paged(), 100, 10)
    assert taken == pytest.approx(0.02 + 10 * (0.0008 + token_s * 105))


def test_in_a_mixed_fleet_each_worker_has_its_own_price() -> None:
    (padded_one,), (paged_one,) = a_fleet(100).workers, paged(100).workers
    both = FleetArrays([padded_one, replace(paged_one, name="paged")])
    delayed = DelayedRequests(0.0, np.array([1e9, 1e9]))
    seconds = delay_s(both, delayed, np.array([0, 1]), np.array([600.0]), np.array([10.0]))
    assert seconds[:, 0].tolist() == pytest.approx([delay(a_fleet(100), 600, 10), delay(paged(100), 600, 10)])
