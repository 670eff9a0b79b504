"""Bulk jobs in the spare capacity: a small one ends soon behind a large one, a large one takes hardly longer."""

from dataclasses import replace

import pytest

from benchmarks.published_costs import CHATGLM_6B_V100
from scheduling.costs import ServingCurves
from scheduling.policies.baton import Baton
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policy import RunningRow
from scheduling.sharing.background.row_shares import ASKED_AGAIN_S, JOIN_S
from scheduling.sharing.background.spare_capacity import FED_AT_ONCE, SpareCapacity
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import SLOPED, a_job, a_line, a_memory, a_worker


def takes_s(policy: str, jobs: list[Arrival], engine: EngineCosts) -> float:
    """The seconds until the last answer of tenant b, whose job comes after 5 s; one worker serves all jobs."""
    trace = simulate(make_policy(policy, PolicySettings()), jobs, [Instance("w", a_memory(15_000))], engine, seed=0)
    assert len(trace.answers) == len(jobs)
    return max(answer.finished_at for answer in trace.answers.values() if answer.id.startswith("b")) - 5.0


@pytest.mark.parametrize("policy", ["fusion", "baton", "magnus", "sequence"])
def test_a_small_job_behind_a_large_one_of_another_tenant_ends_soon(policy: str) -> None:
    small, large, engine = a_job("b", 5, at=5.0), a_job("a", 200), EngineCosts(SLOPED)
    # where rows do not join, it also waits for the batch that runs
    most = 2.0 if policy in ("fusion", "baton") else 3.0
    assert takes_s(policy, [*small, *large], engine) <= most * takes_s(policy, small, engine)


@pytest.mark.parametrize("policy", ["fusion", "baton"])
def test_a_small_job_behind_lines_with_long_prompts_and_short_answers_ends_soon(policy: str) -> None:
    """Their prefills stop its rows again and again, and their rows pad its own."""
    small, engine = a_job("b", 10, at=5.0), EngineCosts(CHATGLM_6B_V100.curves)
    lines = (a_line(f"a{n:04}", 15, tenant="a", job="job of a", length=1000) for n in range(150))
    large = [Arrival(line, 15) for line in lines]
    # as it comes, fourteen of these are being prefilled, which takes 2.9 of 20 s
    assert takes_s(policy, [*small, *large], engine) <= 2.15 * takes_s(policy, small, engine)


def test_no_more_rows_join_a_worker_until_those_that_joined_have_prefilled() -> None:
    costs = ServingCurves(prefill=(0.0, JOIN_S / FED_AT_ONCE, 0.0, 0.0), decode=(0.0, 0.01, 0.0, 0.1))
    policy = SpareCapacity(Baton)
    for n in range(3 * FED_AT_ONCE):
        policy.add(a_line(f"a{n}", 90), 0.0)
    (joined,) = policy.assign([a_worker(costs=costs)], 0.0)
    assert len(joined.requests) == FED_AT_ONCE
    prefilling = a_worker(costs=costs, rows=[RunningRow(line, 0, 0.0) for line in joined.requests])
    assert policy.assign([prefilling], 1.0) == []
    assert policy.wake_at(1.0) == 1.0 + ASKED_AGAIN_S
    decoding = a_worker(costs=costs, rows=[RunningRow(line, 1, 0.0) for line in joined.requests])
    assert policy.assign([decoding], 2.0)


def test_where_the_next_lines_would_slow_a_small_job_down_its_own_lines_go_first() -> None:
    # an iteration takes 1 s and an eighth of a second more for each row
    costs = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 0.125, 0.0, 1.0))
    policy = SpareCapacity(Fusion)
    for n in range(40):
        policy.add(a_line(f"a{n}", 90, tenant="a", job="large"), 0.0)
    joined = policy.assign([a_worker(tokens=2_000, costs=costs)], 0.0)
    for n in range(4):
        policy.add(a_line(f"b{n}", 90, tenant="b", job="small"), 1.0)
    policy._background.queue.tenants.charge("b", 3_000)  # so that it is the turn of the other tenant
    large = [request for one in joined for request in one.requests][:8]
    rows = [RunningRow(line, 1, 0.0) for line in (*large, a_line("b", 90, tenant="b", job="small"))]
    joins, _ = policy.assign([a_worker(tokens=3_000, costs=costs, rows=rows)], 2.0)
    assert {request.id for request in joins.requests} == {"b0", "b1", "b2", "b3"}


@pytest.mark.parametrize(("policy", "most"), [("magnus", 1.05), ("scls", 1.15), ("sequence", 1.05), ("vs", 1.05)])
def test_batches_that_run_to_completion_take_hardly_longer_than_if_all_lines_were_seen(
    policy: str, most: float
) -> None:
    fleet = [Instance(f"w{n}", a_memory(15_000)) for n in range(2)]
    bulk = a_job("a", 300)
    others = [replace(one, request=replace(one.request, tier="default")) for one in bulk]
    made, all_seen = (
        simulate(make_policy(policy, PolicySettings()), some, fleet, EngineCosts(SLOPED), seed=0).makespan_s
        for some in (bulk, others)
    )
    assert made <= most * all_seen


def test_a_continuous_policy_sees_a_few_lines_at_a_time() -> None:
    policy = SpareCapacity(Fusion)
    for number in range(3 * FED_AT_ONCE):
        policy.add(a_line(f"{number:02}", job="large"), 0.0)
    given = sum(len(assignment.requests) for assignment in policy.assign([a_worker(tokens=1000)], 0.0))
    assert len(policy) == 3 * FED_AT_ONCE - given
    assert len(policy._background.policy) <= FED_AT_ONCE
