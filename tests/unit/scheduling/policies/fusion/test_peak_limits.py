"""The factor by which a predicted peak may exceed memory: bounds, directions, and the rows that it lets join."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policies.fusion.peak_limits import FREE_SHARE, FULL_SHARE, GAIN, MOST_FACTOR, PeakLimits, used_share
from scheduling.policy import Worker
from tests.unit.scheduling.scheduling_builders import (
    SLOPED,
    a_paged_worker,
    a_request,
    a_row,
    a_worker,
    add_all,
    examples,
)

TOKENS = 1000


def holding(tokens: int) -> Worker:
    """A worker whose rows need this many of 1,000 tokens; they are predicted to end in ten iterations of 0.1 s."""
    return a_paged_worker(TOKENS, [a_row(length=tokens - 1, generated=1, predicted=11)] if tokens else [])


def factor_after(limits: PeakLimits, tokens: int, now: float, weight: float = 1.0, waits: bool = True) -> float:
    factor = float(limits.factors(FleetArrays([holding(tokens)]), weight, now)[0])
    limits.after_decision(waits)
    return factor


def test_while_requests_wait_it_moves_with_the_memory_that_is_free_beyond_the_wanted_share() -> None:
    limits = PeakLimits()
    assert factor_after(limits, 600, 0.0) == 1.0
    # a tenth of the turnover of 1 s; 600 of 1,000 tokens are in use
    risen = factor_after(limits, 600, 0.1)
    assert risen == pytest.approx(1 + 0.1 * GAIN * (FULL_SHARE - FREE_SHARE - 0.6))
    assert factor_after(limits, 950, 0.2) == pytest.approx(risen + 0.1 * GAIN * (FULL_SHARE - FREE_SHARE - 0.95))


def test_predictions_that_tell_nothing_keep_less_memory_free() -> None:
    for weight, rises in ((0.0, True), (1.0, False)):
        limits = PeakLimits()
        factor_after(limits, 900, 0.0, weight)
        assert (factor_after(limits, 900, 0.5, weight) > 1) is rises


def test_preempted_rows_count_with_the_time_to_compute_them_again() -> None:
    beside, waiting = a_row("beside", length=599), a_row("waits", length=599)
    fleet = FleetArrays([a_paged_worker(TOKENS, [beside, waiting], costs=SLOPED), a_paged_worker(TOKENS, [beside])])
    # 1,200 tokens of 1,000; 200 are computed again in 0.0436 s and 0.2 ms a token, of a turnover of 10 s
    shares = used_share(fleet, np.array([10.0, 10.0]))
    assert shares.tolist() == pytest.approx([1.2 + (0.0436 + 200 * 2e-4) / 10, 0.6])


def test_in_rectangular_memory_padding_is_in_use_too() -> None:
    fleet = FleetArrays([a_worker(tokens=TOKENS, rows=[a_row("long", length=299), a_row("short", length=9)])])
    assert used_share(fleet, np.ones(1)).tolist() == [0.6]


DECISIONS = st.lists(
    st.tuples(st.floats(0.0, 5.0), st.sampled_from([0, 10, 500, 950, 1500]), st.booleans()), min_size=1, max_size=40
)


@examples(50)
@given(DECISIONS, st.floats(0.0, 1.0))
def test_it_stays_within_its_bounds_and_returns_to_one_when_nothing_waits(
    decisions: list[tuple[float, int, bool]], weight: float
) -> None:
    limits, now = PeakLimits(), 0.0
    for gap_s, tokens, waits in decisions:
        now += gap_s
        assert 1.0 <= factor_after(limits, tokens, now, weight, waits) <= MOST_FACTOR
    factor_after(limits, 500, now + 1, weight, waits=False)
    falling = [factor_after(limits, 500, now + 1 + second, weight, waits=False) for second in (0.1, 0.2, 0.5, 2.0)]
    assert all(later <= earlier for earlier, later in pairwise(falling))
    assert falling[-1] == 1.0


def test_a_worker_that_left_is_forgotten() -> None:
    limits = PeakLimits()
    factor_after(limits, 500, 0.0)
    assert factor_after(limits, 500, 0.5) > 1
    limits.factors(FleetArrays([a_worker("other")]), 1.0, 0.6)
    limits.after_decision(waits=False)
    assert factor_after(limits, 500, 0.7) == 1.0


def test_more_rows_join_while_requests_wait_beside_empty_memory() -> None:
    policy, row = Fusion(), a_row(length=100, generated=1, predicted=600)
    add_all(policy, [a_request(f"new{number}", length=100, predicted=900) for number in range(5)])
    # when the row ends with 700 tokens, a joiner would have 699
    assert policy.assign([a_paged_worker(TOKENS, [row])], 0.0) == []
    # in the turnover of 59.9 s the factor rises by 5 · (0.83 - 0.101), so to the most
    (assignment,) = policy.assign([a_paged_worker(TOKENS, [row])], 60.0)
    # with three times the memory: three joiners make 700 + 3 · 699 tokens when the row ends, four would make 3,496
    assert len(assignment.requests) == 3


def test_empty_memory_lets_no_more_rows_join_once_nobody_has_waited_for_it() -> None:
    policy, worker = Fusion(), a_paged_worker(TOKENS, [a_row(length=100, generated=1, predicted=600)])
    for name, at in (("cancelled", 0.0), ("new", 60.0)):
        policy.add(a_request(name, at, length=100, predicted=900), at)
        assert policy.assign([worker], at) == []
        policy.discard(name)
        assert policy.assign([worker], at + 0.1) == []


@examples(50)
@given(
    st.lists(st.tuples(st.integers(1, 1500), st.integers(1, 1500)), min_size=1, max_size=12),
    st.lists(st.floats(0.1, 100.0), min_size=1, max_size=5),
)
def test_no_factor_lets_a_row_join_that_does_not_fit_at_once_or_alone(
    lengths: list[tuple[int, int]], gaps_s: list[float]
) -> None:
    policy, now = Fusion(), 0.0
    add_all(
        policy,
        [a_request(f"r{n:02}", length=length, predicted=left, limit=2000) for n, (length, left) in enumerate(lengths)],
    )
    rows = [a_row(length=300, generated=1, predicted=900)]
    for gap_s in gaps_s:
        now += gap_s
        for assignment in policy.assign([a_paged_worker(TOKENS, rows)], now):
            assert sum(request.prefill for request in assignment.requests) + 301 <= TOKENS
            assert all(request.prefill + request.remaining <= TOKENS for request in assignment.requests)
