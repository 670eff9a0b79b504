"""Work goes where its prompt's beginning is in the cache, but never to a worker that would serve it worse.

A request is only given to workers that can do what it needs, under every policy; nobody waits for ever.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.kv_memory import KvMemory
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Assignment, Worker
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request
from scheduling.sharing.ability_groups import MOST_PREFIXES, AbilityGroups, PrefixHolders
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_request, a_row, a_worker, examples, ids


def of(application: str, id: str = "r", tenant: str = "acme") -> Request:
    return replace(a_request(id, tenant=tenant), application=application)


def caching(name: str, **changes: Any) -> Worker:
    return replace(a_worker(name), prefix_cache=True, **changes)


def assigned(worker: str, *requests: Request) -> Assignment:
    return Assignment(worker, requests)


def holding(*worker_and_application: tuple[str, str]) -> PrefixHolders:
    holders = PrefixHolders()
    for name, application in worker_and_application:
        holders.place([assigned(name, of(application))], [caching(name)])
    return holders


def test_of_two_idle_workers_the_one_that_served_the_application_gets_it_again() -> None:
    holders = holding(("w1", "summary"), ("w2", "chat"))
    fleet = [caching("w1"), caching("w2")]
    assert ids(holders.place([assigned("w1", of("chat"))], fleet)) == {"w2": [["r"]]}
    assert ids(holders.place([assigned("w2", of("summary"))], fleet)) == {"w1": [["r"]]}
    assert ids(holders.place([assigned("w2", of("new"))], fleet)) == {"w2": [["r"]]}


def test_another_tenants_beginning_is_another_one() -> None:
    holders = holding(("w2", "chat"))
    fleet = [caching("w1"), caching("w2")]
    assert ids(holders.place([assigned("w1", of("chat", tenant="globex"))], fleet)) == {"w1": [["r"]]}


@pytest.mark.parametrize(
    "worse",
    [
        {"rows": (a_row(),)},
        {"queued": 1},
        {"prefix_cache": False},
        {"memory": KvMemory(9_999, 1)},
        {"memory": KvMemory(10_000, 1, paged=True)},
        {"memory": KvMemory(10_000, 1, max_rows=1)},
        {"costs": SLOPED},
    ],
)
def test_a_worker_that_would_serve_it_worse_gets_nothing_for_what_it_holds(worse: dict[str, Any]) -> None:
    holders = holding(("w2", "chat"))
    cheap = replace(FLAT, decode=(0.0, 0.0, 0.0, 0.01))
    fleet = [caching("w1", costs=cheap), caching("w2", costs=cheap)]
    batch = assigned("w1", of("chat", "a"), of("chat", "b"))
    assert ids(holding(("w2", "chat")).place([batch], fleet)) == {"w2": [["a", "b"]]}
    assert ids(holders.place([batch], [fleet[0], replace(fleet[1], **worse)])) == {"w1": [["a", "b"]]}


def test_what_a_worker_without_such_a_cache_or_with_rows_was_given_stays_there() -> None:
    holders = holding(("w2", "chat"))
    for chosen in (a_worker("w1"), caching("w1", rows=(a_row(),))):
        assert ids(holders.place([assigned("w1", of("chat"))], [chosen, caching("w2")])) == {"w1": [["r"]]}
    assert ids(holders.place([assigned("w1")], [caching("w1"), caching("w2")])) == {"w1": [[]]}


def test_batches_that_follow_each_other_on_one_worker_stay_together() -> None:
    two = [assigned("w1", of("chat", "a")), assigned("w1", of("chat", "b"))]
    assert ids(holding(("w2", "chat")).place(two, [caching("w1"), caching("w2")])) == {"w1": [["a"], ["b"]]}


def test_a_worker_that_was_left_free_can_be_given_the_next_batch() -> None:
    holders = holding(("w3", "chat"), ("w1", "summary"))
    batches = [assigned("w1", of("chat", "a")), assigned("w2", of("summary", "b"))]
    fleet = [caching(name) for name in ("w1", "w2", "w3")]
    assert ids(holders.place(batches, fleet)) == {"w3": [["a"]], "w1": [["b"]]}


def test_only_the_last_beginnings_of_a_worker_are_remembered() -> None:
    holders = holding(("w2", "oldest"), *[("w2", f"{n}") for n in range(MOST_PREFIXES)])
    fleet = [caching("w1"), caching("w2")]
    assert ids(holders.place([assigned("w1", of("oldest"))], fleet)) == {"w1": [["r"]]}
    assert ids(holders.place([assigned("w1", of("0"))], fleet)) == {"w2": [["r"]]}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_prefers_the_worker_that_served_the_application(name: str) -> None:
    policy = make_policy(name, PolicySettings())
    fleet = [caching("w1"), caching("w2")]
    used = []
    for turn, application in enumerate(["a", "b", "a", "b", "b", "a"]):
        policy.add(of(application, f"r{turn}"), 100.0 * turn)
        (assignment,) = policy.assign(fleet, 100.0 * turn + 50.0)
        used.append(assignment.worker)
    assert used[0] == used[2] == used[5]
    assert used[1] == used[3] == used[4]


JSON, LOGPROBS = frozenset({"response_format"}), frozenset({"logprobs"})
NEEDS = st.sampled_from([frozenset(), JSON, LOGPROBS, JSON | LOGPROBS])


def needing(id: str, needs: frozenset[str], at: float = 0.0) -> Request:
    return replace(a_request(id, at=at), needs=needs)


def lacking(name: str, lacks: frozenset[str], tokens: int = 10_000) -> Worker:
    return replace(a_worker(name, tokens), lacks=lacks)


@pytest.mark.parametrize("name", sorted(POLICIES))
@examples(25)
@given(st.lists(NEEDS, min_size=1, max_size=12), st.lists(NEEDS, min_size=1, max_size=3))
def test_each_request_is_served_once_by_a_worker_that_can_if_there_is_any(name, needs, lacks):
    workers = [lacking(f"w{n}", some) for n, some in enumerate(lacks)]
    policy = make_policy(name, PolicySettings())
    requests = {f"r{n:02}": needing(f"r{n:02}", some, float(n)) for n, some in enumerate(needs)}
    for request in requests.values():
        policy.add(request, request.arrived_at)
    served: list[str] = []
    for turn in range(len(requests) + 2):
        for assignment in policy.assign(workers, 1000.0 + 10 * turn):
            (worker,) = (one for one in workers if one.name == assignment.worker)
            assert worker.can_serve(assignment.requests)
            served += [request.id for request in assignment.requests]
    able = {one for one, request in requests.items() if any(worker.can_serve([request]) for worker in workers)}
    assert sorted(served) == sorted(able)
    assert len(policy) == len(requests) - len(able)


def test_the_group_that_got_work_chooses_last_the_next_time() -> None:
    policy = AbilityGroups(lambda: Vanilla(100, 100))
    for n in range(3):
        policy.add(needing(f"plain{n}", frozenset()), 0.0)
        policy.add(needing(f"json{n}", JSON), 0.0)
    one_row = [lacking("w", frozenset(), tokens=200)]
    assert [ids(policy.assign(one_row, float(n)))["w"] for n in range(4)] == [
        [["plain0"]],
        [["json0"]],
        [["plain1"]],
        [["json1"]],
    ]
    assert [batch.requests[0].id for batch in policy.waiting(4.0)] == ["plain2", "json2"]


def test_the_later_group_sees_the_rows_that_the_earlier_one_has_just_let_join() -> None:
    policy = AbilityGroups(Fusion)
    policy.add(needing("plain", frozenset()), 0.0)
    policy.add(needing("json", JSON), 0.0)
    workers = [lacking("w", frozenset(), tokens=25)]
    assert ids(policy.assign(workers, 0.0)) == {"w": [["plain"]]}
    assert ids(policy.assign(workers, 1.0)) == {"w": [["json"]]}


def test_what_was_assigned_counts_as_rows_or_as_a_batch_of_its_worker() -> None:
    worker = a_worker("w", rows=[a_row("stays"), a_row("leaves")])
    joined = worker.given(Assignment("w", (a_request("new"),), joins=True, estimated_s=3.0, preempts=("leaves",)), 9.0)
    assert [row.request.id for row in joined.rows] == ["stays", "new"]
    assert (joined.busy_s, joined.rows[1].started_at) == (3.0, 9.0)
    queued = joined.given(Assignment("w", (a_request("batch"),), estimated_s=2.0), 9.0)
    assert (queued.queued, queued.busy_s, len(queued.rows)) == (1, 5.0, 2)


def test_what_ran_out_of_memory_together_waits_for_a_worker_that_can_serve_all_of_it() -> None:
    policy = AbilityGroups(lambda: Vanilla(100, 100))
    both = (needing("json", JSON), needing("logprobs", LOGPROBS), needing("plain", frozenset()))
    policy.out_of_memory(Assignment("", both), 0.0)
    assert len(policy) == 3
    assert policy.assign([lacking("w", LOGPROBS)], 0.0) == []
    assert policy.assign([lacking("w", JSON)], 0.0) == []
    served = [request for n in range(2) for one in policy.assign([a_worker("w")], 1.0 + n) for request in one.requests]
    assert {request.id for request in served} == {"json", "logprobs", "plain"}


def test_each_group_is_told_how_well_predictions_rank_and_the_first_to_wake_is_said() -> None:
    policy = AbilityGroups(Fusion)
    policy.add(needing("json", JSON), 0.0)
    assert policy.wake_at(0.0) is None
    policy.set_rank_correlation(RankCorrelation(0.5))
    policy.add(needing("later", LOGPROBS), 0.0)
    running = a_worker("w", rows=[a_row(f"row{n}", predicted=500) for n in range(8)], costs=SLOPED)
    assert policy.assign([running], 0.0) == []  # a join is not worth the stop of eight rows yet
    wakes = policy.wake_at(0.0)
    assert wakes is not None
    assert ids(policy.assign([running], wakes)) != {}
