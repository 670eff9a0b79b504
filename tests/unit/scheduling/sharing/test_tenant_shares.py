"""Tenants share a busy fleet by their weights, under every policy; alone, a tenant has all of it.

A policy that offloads all that it sees is shown the tenants' requests in turn, as much as its workers hold.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.baton import Baton
from scheduling.policies.magnus import MagnusPolicy
from scheduling.policies.scls import SliceLevel
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Assignment
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request, ServiceTier
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.sharing.tenant_shares import POLICIES_KEPT, TENANTS_TRIED, OffloadShares, TenantShares
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace
from tests.unit.scheduling.scheduling_builders import (
    SLOPED,
    a_memory,
    a_paged_worker,
    a_request,
    a_row,
    a_worker,
    add_all,
    examples,
    ids,
)

SETTINGS = PolicySettings(max_prompt_tokens=60, max_output_tokens=60, wma_threshold=2_000)
SHARING = sorted(POLICIES)
FLEET = (Instance("w0", a_memory(900)), Instance("w1", a_memory(600)))


def rows(policy_ids: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    return [one for batches in policy_ids.values() for batch in batches for one in batch]


def backlog(tenants: Mapping[str, int], seed: int = 1) -> list[Arrival]:
    """As many requests of each tenant as `tenants` says, all waiting at 0, with the same mixture of lengths."""
    arrivals = []
    for tenant, count in tenants.items():
        for n in range(count):
            prompt, answer = 5 + 7 * (n + seed) % 50, 3 + 11 * (n + seed) % 55
            arrivals.append(Arrival(a_request(f"{tenant}{n:04}", 0.0, prompt, answer, limit=60, tenant=tenant), answer))
    return arrivals


def serve(
    name: str, arrivals: Sequence[Arrival], weights: Mapping[str, float] | None = None, until: float = 1e9
) -> Trace:
    policy = make_policy(name, SETTINGS)
    policy.set_weights(weights or {})
    return simulate(policy, arrivals, FLEET, EngineCosts(SLOPED), seed=0, until=until)


def served_tokens(trace: Trace, arrivals: Sequence[Arrival]) -> dict[str, int]:
    """Tokens of prompts and answers that were served, by tenant."""
    requests = {arrival.request.id: arrival.request for arrival in arrivals}
    served: dict[str, int] = defaultdict(int)
    for answer in trace.answers.values():
        request = requests[answer.id]
        served[request.tenant] += request.length + answer.generated
    return served


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("weights", [{}, {"b": 3.0}, {"a": 0.5, "b": 1.5, "c": 2.0}], ids=["equal", "1:3", "1:3:4"])
def test_in_overload_each_tenants_share_of_the_tokens_is_that_of_its_weight(
    name: str, weights: Mapping[str, float]
) -> None:
    tenants = dict.fromkeys("abc" if len(weights) == 3 else "ab", 500)
    arrivals = backlog(tenants)
    until = 0.3 * serve(name, backlog({"a": 500})).makespan_s * len(tenants)  # somebody of each still waits
    served = served_tokens(serve(name, arrivals, weights, until), arrivals)
    total, all_weights = sum(served.values()), sum(weights.get(tenant, 1.0) for tenant in tenants)
    for tenant in tenants:
        assert served[tenant] / total == pytest.approx(weights.get(tenant, 1.0) / all_weights, rel=0.1)


@pytest.mark.parametrize("name", SHARING)
def test_requests_of_the_tier_priority_overtake_those_of_every_tenant_and_their_own(name: str) -> None:
    late = [replace(one.request, id=f"late {one.request.id}", arrived_at=1.0) for one in backlog({"a": 8})]
    either: tuple[ServiceTier, ServiceTier] = ("default", "priority")
    tiers = {tier: [Arrival(replace(one, id=f"{tier} {one.id}", tier=tier), 30) for one in late] for tier in either}
    trace = serve(name, [*backlog({"a": 40, "b": 40}), *tiers["default"], *tiers["priority"]])
    took_s = {
        tier: max(trace.answers[one.request.id].finished_at - 1.0 for one in some) for tier, some in tiers.items()
    }
    assert took_s["priority"] < 0.7 * took_s["default"]


@pytest.mark.parametrize("name", SHARING)
def test_what_others_leave_is_for_whoever_waits(name: str) -> None:
    alone = serve(name, backlog({"a": 200})).makespan_s
    beside = serve(name, backlog({"a": 200, "idle": 3}), {"a": 0.1, "idle": 100.0}).makespan_s
    assert beside < (1.2 if name == "scls" else 1.1) * alone  # of fewer requests it makes batches of less similar ones


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_one_tenant_is_served_as_if_there_were_no_shares(name: str) -> None:
    arrivals = backlog({"a": 60})
    shared = simulate(make_policy(name, SETTINGS), arrivals, FLEET, EngineCosts(SLOPED), seed=0)
    plain = simulate(POLICIES[name](SETTINGS), arrivals, FLEET, EngineCosts(SLOPED), seed=0)
    assert shared == plain


@pytest.mark.parametrize("name", sorted(POLICIES))
@examples(10)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(1, 60), st.integers(1, 60)), max_size=40)
)
def test_every_tenants_requests_are_answered_once(name: str, drawn: list[tuple[str, int, int, int]]) -> None:
    arrivals = [
        Arrival(a_request(f"r{n}", at / 2, length, answer, limit=60, tenant=tenant), answer)
        for n, (tenant, at, length, answer) in enumerate(drawn)
    ]
    trace = serve(name, arrivals, {"a": 2.0})
    assert sorted(trace.answers) == sorted(arrival.request.id for arrival in arrivals)


def test_a_batch_is_of_one_tenant_and_each_idle_worker_goes_to_the_least_served() -> None:
    policy = TenantShares(lambda: Vanilla(10, 10))
    add_all(policy, [a_request(f"{tenant}{n}", tenant=tenant) for n in range(9) for tenant in "ab"])
    workers = [a_worker("busy", 60, busy=True), a_worker("w0", 60), a_worker("w1", 60)]
    assert ids(policy.assign(workers, 0.0)) == {"w0": [["a0", "a1", "a2"]], "w1": [["b0", "b1", "b2"]]}
    policy.set_weights({"b": 2.0})
    assert ids(policy.assign(workers, 0.0)) == {"w0": [["a3", "a4", "a5"]], "w1": [["b3", "b4", "b5"]]}
    assert ids(policy.assign(workers[1:2], 0.0)) == {"w0": [["b6", "b7", "b8"]]}


def test_a_tenant_that_comes_goes_before_the_one_that_was_served_until_then() -> None:
    policy = TenantShares(lambda: Vanilla(10, 10))
    add_all(policy, [a_request(f"a{n}", tenant="a") for n in range(9)])
    assert ids(policy.assign([a_worker("w", 60)], 0.0)) == {"w": [["a0", "a1", "a2"]]}
    policy.add(a_request("b0", 1.0, tenant="b"), 1.0)
    assert ids(policy.assign([a_worker("w", 60)], 2.0)) == {"w": [["b0"]]}
    assert ids(policy.assign([a_worker("w", 60)], 3.0)) == {"w": [["a3", "a4", "a5"]]}


def test_a_long_row_is_not_kept_out_by_the_short_ones_of_others() -> None:
    policy = TenantShares(Baton)
    policy.add(a_request("long", length=60, predicted=20, tenant="a"), 0.0)
    add_all(policy, [a_request(f"b{n:02}", length=5, predicted=5, tenant="b") for n in range(40)])
    part = a_paged_worker(100, rows=[a_row("row", length=55, generated=5)])  # two short rows fit, the long one does not
    ahead = [rows(ids(policy.assign([part], float(turn)))) for turn in range(20)]
    assert 0 < sum(map(len, ahead)) < 20
    assert rows(ids(policy.assign([a_paged_worker(100)], 20.0)))[0] == "long"


def test_nobody_waits_for_a_tenant_whose_request_no_worker_could_take() -> None:
    policy = TenantShares(Baton)
    policy.add(a_request("larger than any", length=100, tenant="a"), 0.0)
    add_all(policy, [a_request(f"b{n:02}", length=5, predicted=5, tenant="b") for n in range(40)])
    served = [rows(ids(policy.assign([a_paged_worker(100)], float(turn)))) for turn in range(20)]
    assert sum(map(len, served)) == 40


def test_whoever_cannot_use_an_idle_worker_leaves_it_to_the_next() -> None:
    policy = TenantShares(Baton)
    policy.add(a_request("large", length=500, tenant="a"), 0.0)
    policy.add(a_request("small", tenant="b"), 0.0)
    assert ids(policy.assign([a_worker(tokens=100)], 0.0)) == {"w": [["small"]]}
    assert len(policy) == 1


def test_a_batch_that_needs_the_larger_worker_leaves_the_smaller_one_to_the_next_tenant() -> None:
    policy = TenantShares(lambda: MagnusPolicy(2_000))
    policy.add(a_request("large", length=60, predicted=30, tenant="a"), 0.0)
    policy.add(a_request("small", tenant="b"), 0.0)
    small, large = a_worker("small worker", 50), a_worker("large worker", 200)
    assert ids(policy.assign([small, replace(large, queued=1)], 0.0)) == {"small worker": [["small"]]}
    assert ids(policy.assign([replace(small, queued=1), large], 0.0)) == {"large worker": [["large"]]}


def test_only_the_least_served_tenants_are_tried() -> None:
    policy = TenantShares(Baton)
    for n in range(TENANTS_TRIED):
        policy.add(a_request(f"large{n}", length=500, tenant=f"a{n}"), 0.0)
    policy.add(a_request("small", tenant="b"), 0.0)
    assert policy.assign([a_worker(tokens=100)], 0.0) == []


def test_rows_that_outgrow_their_memory_leave_even_if_nobody_waits() -> None:
    policy = TenantShares(Baton)
    for tenant in "ab":
        policy.add(a_request(tenant, tenant=tenant), 0.0)
        policy.assign([a_worker()], 0.0)
    full = a_worker(tokens=185, rows=[a_row("one", 60, 30), a_row("other", 60, 30)])
    assert [assignment.preempts for assignment in policy.assign([full], 1.0)] == [("one",)]


def test_the_queue_is_shown_in_turns_by_weight() -> None:
    policy = TenantShares(lambda: Vanilla(10, 10))
    policy.set_weights({"b": 2.0})
    policy.assign([a_worker(tokens=20, busy=True)], 0.0)
    add_all(policy, [a_request(f"{tenant}{n}", tenant=tenant) for tenant in "ab" for n in range(3)])
    policy.assign([a_worker(tokens=20, busy=True)], 0.0)
    shown = [request.id for batch in policy.waiting(0.0) for request in batch.requests]
    assert shown == ["a0", "b0", "b1", "a1", "b2", "a2"]


def test_what_ran_out_of_memory_waits_again_with_its_tenant() -> None:
    policy = TenantShares(Baton)
    mixed = tuple(
        a_request(f"{tenant}{n}", tenant=tenant) for tenant, count in (("a", 2), ("b", 1)) for n in range(count)
    )
    policy.out_of_memory(Assignment("", mixed), 0.0)
    assert len(policy) == 3
    assert policy.wake_at(0.0) is None
    assert sorted(rows(ids(policy.assign([a_worker()], 0.0)))) == ["a0", "a1", "b0"]
    alone = TenantShares(Baton)
    alone.out_of_memory(Assignment("", mixed[:1]), 0.0)
    (waiting,) = alone.waiting(0.0)
    assert waiting.requests[0].predicted == waiting.requests[0].limit


def test_each_tenants_policy_is_told_how_well_predictions_rank_and_forgets_what_is_discarded() -> None:
    policy = TenantShares(Baton)
    policy.set_rank_correlation(RankCorrelation(0.5))
    add_all(policy, [a_request("a", tenant="a"), a_request("b", tenant="b")])
    policy.set_rank_correlation(RankCorrelation(0.6))
    assert policy.discard("b")
    assert not policy.discard("b")
    assert len(policy) == 1


ROWS = 10  # rows of a hundred tokens that a worker holds


def sharing() -> OffloadShares:
    policy = OffloadShares(lambda: SliceLevel(slice_tokens=90, least_interval_s=1.0))
    policy.set_weights({"heavy": 3.0})
    return policy


def of(tenant: str, number: int) -> Request:
    return a_request(f"{tenant}{number:02}", float(number), length=10, predicted=90, tenant=tenant)


def assigned_ids(policy: OffloadShares, now: float) -> list[str]:
    batches = ids(policy.assign([a_worker(tokens=100 * ROWS)], now)).get("w", [])
    return sorted(one for batch in batches for one in batch)


def test_while_several_tenants_wait_the_workers_are_given_what_they_hold_by_the_tenants_weights() -> None:
    policy = sharing()
    for number in range(20):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    first = assigned_ids(policy, 0.0)
    assert [sum(one.startswith(tenant) for one in first) for tenant in ("heavy", "light")] == [7, 3]
    assert first == [*(f"heavy{n:02}" for n in range(7)), *(f"light{n:02}" for n in range(3))]
    assert len(policy) == 40 - ROWS


def test_a_tenant_that_waits_alone_has_all_of_it() -> None:
    policy = sharing()
    for number in range(20):
        policy.add(of("light", number), 0.0)
    assert len(assigned_ids(policy, 0.0)) == 20


def test_it_wants_to_be_asked_at_the_end_of_the_interval_while_anything_waits() -> None:
    policy = sharing()
    for number in range(20):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    assigned_ids(policy, 0.0)
    end = policy.wake_at(0.0)
    assert end is not None
    assert assigned_ids(policy, end)
    for number in range(20):
        for tenant in ("heavy", "light"):
            policy.discard(of(tenant, number).id)
    assert len(policy) == 0
    assert policy.wake_at(end) is None


def test_others_are_shown_in_place_of_requests_that_were_discarded_meanwhile() -> None:
    policy = sharing()
    for number in range(30):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    assigned_ids(policy, 0.0)
    end = policy.wake_at(0.0)
    assert end is not None
    assert assigned_ids(policy, end - 0.01) == []  # shown, and not assigned before the interval is over
    shown = [request.id for batch in policy.waiting(end) for request in batch.requests][:ROWS]
    assert all(policy.discard(one) for one in shown)
    assert len(assigned_ids(policy, end)) >= ROWS - 1


def test_what_waits_is_listed_as_it_will_be_shown() -> None:
    policy = sharing()
    for number in range(4):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    assert policy.assign([], 0.0) == []
    listed = [request.id for batch in policy.waiting(0.0) for request in batch.requests]
    assert listed == ["heavy00", "light00", "heavy01", "heavy02", "heavy03", "light01", "light02", "light03"]


def test_policies_of_tenants_without_a_waiting_request_are_dropped_once_there_are_many() -> None:
    policy = TenantShares(lambda: Vanilla(10, 10))
    for number in range(2 * POLICIES_KEPT):
        policy.add(a_request(str(number), tenant=f"tenant {number}"), 0.0)
        assert policy.discard(str(number))
        assert len(list(policy._inner())) <= POLICIES_KEPT
