"""Suspects run in halves until each guilty one is alone; what outgrew a worker goes to a larger one."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.baton import Baton
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Assignment
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request
from scheduling.sharing.isolation import IsolatingPolicy
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from tests.unit.scheduling.scheduling_builders import a_request, a_row, a_worker, examples, ids

NO_FLEET = [a_worker("w1"), a_worker("w2")]


def an_outgrown(id: str, tokens: int, limit: int = 20) -> Request:
    return Request(id, 0.0, 10, limit, 5, 5, outgrew_tokens=tokens)


@pytest.mark.parametrize("name", sorted(POLICIES))
@examples(20)
@given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_of_any_guilty_among_n_each_fails_alone_within_log2_n_plus_2_failures_and_the_others_complete(name, drawn):
    count, guilty_numbers = drawn
    rows = [a_request(f"r{n:02}", at=float(n), length=1 + n % 7, predicted=1 + n % 11) for n in range(count)]
    guilty = {f"r{n:02}" for n in guilty_numbers}
    policy = make_policy(name, PolicySettings())
    failures: Counter[str] = Counter()
    completed: list[str] = []
    failed: list[str] = []

    def serve(requests: tuple[Request, ...]) -> None:
        """An engine that fails on any batch with a guilty row, and `models.leasing.requeue`'s rule for failures."""
        batch = {request.id for request in requests}
        if not batch & guilty:
            completed.extend(batch)
            return
        failures.update(batch)
        if len(batch) == 1 and failures[requests[0].id] > 1:
            failed.extend(batch)
        else:
            policy.isolate(requests)

    serve(tuple(rows))
    while len(policy):
        for assignment in policy.assign(NO_FLEET, 100.0):
            assert assignment.sealed
            assert not assignment.joins
            assert assignment.iteration_limit is None
            serve(assignment.requests)
    assert sorted(failed) == sorted(guilty)
    assert sorted(completed) == sorted({row.id for row in rows} - guilty)
    assert all(failures[one] <= math.log2(count) + 2 for one in guilty)


def test_where_rows_join_a_worker_with_suspects_gets_no_joiners_and_half_of_the_fleet_serves_on() -> None:
    policy = IsolatingPolicy(Baton())
    policy.isolate([a_request(f"s{n}") for n in range(4)])
    policy.add(a_request("other"), 0.0)
    workers = [a_worker("w1", rows=[a_row()]), a_worker("w2")]
    assert ids(policy.assign(workers, 0.0)) == {"w2": [["s0", "s1"]], "w1": [["other"]]}
    assert policy.assign([a_worker("w1"), a_worker("w2", busy=True)], 1.0) == []
    assert ids(policy.assign(workers, 2.0)) == {"w2": [["s2", "s3"]]}


def test_where_batches_queue_at_workers_halves_go_to_those_that_are_free_soonest() -> None:
    policy = make_policy("scls", PolicySettings())
    policy.isolate([a_request(f"s{n}") for n in range(4)])
    busy = [a_worker("w1", busy=True), a_worker("w2", busy=True), a_worker("w3")]
    assert ids(policy.assign(busy, 0.0)) == {"w3": [["s0", "s1"]], "w1": [["s2", "s3"]]}


def test_run_to_completion_waits_for_an_idle_worker() -> None:
    policy = IsolatingPolicy(Vanilla(100, 100))
    policy.isolate([a_request("s0"), a_request("s1")])
    assert policy.assign([a_worker("w1", busy=True)], 0.0) == []
    assert ids(policy.assign([a_worker("w1")], 0.0)) == {"w1": [["s0"]]}
    assert policy.assign([], 0.0) == []


def test_what_outgrew_a_worker_goes_to_one_that_holds_its_limit_or_else_to_the_largest() -> None:
    small, middle, large = a_worker("small", 20), a_worker("middle", 25), a_worker("large", 29)
    for limit, worker in ((14, "middle"), (19, "large"), (500, "large")):
        policy = IsolatingPolicy(Vanilla(10, 10))
        policy.add(an_outgrown("r", 20, limit), 0.0)
        assert ids(policy.assign([small, middle, large], 0.0)) == {worker: [["r"]]}


def test_it_waits_for_the_largest_worker_while_that_is_busy_and_the_others_serve_on() -> None:
    policy = IsolatingPolicy(Vanilla(10, 10))
    policy.add(an_outgrown("r", 20), 0.0)
    policy.add(a_request("other", at=1.0), 0.0)
    assert ids(policy.assign([a_worker("small", 25), a_worker("large", 40, busy=True)], 0.0)) == {"small": [["other"]]}
    assert policy.assign([a_worker("small", 20)], 0.0) == []
    assert ids(policy.assign([a_worker("small", 20), a_worker("large", 40)], 0.0)) == {"large": [["r"]]}


def test_what_waits_apart_is_shown_first_counted_and_can_be_discarded() -> None:
    policy = IsolatingPolicy(Vanilla(100, 100))
    policy.add(a_request("other"), 0.0)
    policy.isolate([a_request("s0"), a_request("s1")])
    assert [[request.id for request in batch.requests] for batch in policy.waiting(0.0)] == [["s0"], ["s1"], ["other"]]
    assert len(policy) == 3
    assert policy.discard("s0")
    assert policy.discard("other")
    assert not policy.discard("s0")
    assert len(policy) == 1


def test_everything_else_is_the_policys_own() -> None:
    policy = make_policy("scls", PolicySettings())
    policy.set_rank_correlation(RankCorrelation(0.5))
    policy.out_of_memory(Assignment("w", (a_request("a"), a_request("b"))), 0.0)
    assert [[request.id for request in batch.requests] for batch in policy.waiting(0.0)] == [["a"], ["b"]]
    policy.assign([a_worker()], 1.0)
    policy.add(a_request("c"), 1.0)
    assert policy.wake_at(1.0) is not None
