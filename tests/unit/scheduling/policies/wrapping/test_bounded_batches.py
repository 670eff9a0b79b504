"""Background batches that run to completion end soon, so that others do not wait for long."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published_costs import CHATGLM_6B_V100
from scheduling.policies.magnus import MagnusPolicy
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policies.wrapping.bounded_batches import BATCH_S, DECODED, BoundedBatches, bounded
from scheduling.policy import Assignment
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_line, a_request, a_worker, add_all


@pytest.mark.parametrize(
    ("length", "iterations"),
    [
        (1000, 70),  # prefilled for 1 s, so 7 s are left for iterations of 0.1 s
        (4000, 80),  # prefilled for 4 s, and decoding takes at least twice as long
    ],
)
def test_a_batch_runs_for_some_seconds_and_long_enough_for_its_prefill(length: int, iterations: int) -> None:
    batch = bounded(Assignment("w", (a_request(length=length, predicted=500),)), FLAT)
    assert batch.iteration_limit == iterations
    assert batch.estimated_s == pytest.approx(0.001 * length + 0.1 * iterations)


def test_a_limit_of_the_policy_or_of_its_rows_stays() -> None:
    own = Assignment("w", (a_request(predicted=500),), iteration_limit=200)
    assert bounded(own, FLAT) is own
    short = bounded(Assignment("w", (a_request(predicted=5, limit=7),)), FLAT)
    assert short.iteration_limit == 7
    assert short.estimated_s == pytest.approx(0.01 + 0.5)


@given(st.integers(1, 40), st.integers(1, 4000), st.integers(1, 2000))
def test_no_batch_takes_much_longer_than_the_bound(size: int, length: int, predicted: int) -> None:
    requests = tuple(a_request(str(n), length=length, predicted=predicted, limit=4000) for n in range(size))
    batch = bounded(Assignment("w", requests), SLOPED)
    assert batch.iteration_limit is not None
    decoded_s = batch.iteration_limit * SLOPED.decode_step_s(size, length)
    prefill_s = SLOPED.prefill_s(size, length)
    assert decoded_s <= max(BATCH_S - prefill_s, DECODED * prefill_s) + 1e-6 or batch.iteration_limit == 1


def test_requests_wait_in_the_policy_and_come_back_to_it() -> None:
    policy = BoundedBatches(lambda: MagnusPolicy(longest_first=True))
    add_all(policy, [a_request("short"), a_request("long", predicted=500), a_request("gone")])
    assert policy.discard("gone")
    first, second = (policy.assign([a_worker(tokens=2000)], 0.0)[0] for _ in range(2))
    assert [[one.id for one in batch.requests] for batch in (first, second)] == [["long"], ["short"]]
    policy.out_of_memory(second, 1.0)
    policy.add(replace(first.requests[0], generated=79), 1.0)
    assert sorted(one.id for batch in policy.waiting(1.0) for one in batch.requests) == ["long", "short"]
    assert len(policy.assign([a_worker(tokens=2000)], 1.0)) == 1


def test_a_small_job_does_not_wait_for_a_long_batch_of_another_tenant() -> None:
    lines = [a_line(f"a{n:03}", 400, length=30, tenant="a", job="a") for n in range(100)]
    small = a_line("b", 10, at=5.0, length=30, tenant="b", job="b")
    policy = make_policy("magnus", PolicySettings())
    fleet = [Instance("w", CHATGLM_6B_V100.memory)]
    arrivals = [*(Arrival(line, 400) for line in lines), Arrival(small, 10)]
    trace = simulate(policy, arrivals, fleet, EngineCosts(CHATGLM_6B_V100.curves), seed=1)
    assert len(trace.answers) == 101
    assert trace.answers["b"].finished_at < 5.0 + 2 * BATCH_S  # a batch that runs, and one of the equally served tenant
