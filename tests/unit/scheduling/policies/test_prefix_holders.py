"""Work goes where its prompt's beginning is in the cache, but never to a worker that would serve it worse."""

from dataclasses import replace
from typing import Any

import pytest

from scheduling.kv_memory import KvMemory
from scheduling.policies.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.policies.prefix_holders import MOST_PREFIXES, PrefixHolders
from scheduling.policy import Assignment, Worker
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_request, a_row, a_worker, ids


def of(application: str, id: str = "r", tenant: str = "acme") -> Request:
    return replace(a_request(id, tenant=tenant), application=application)


def caching(name: str, **changes: Any) -> Worker:
    return replace(a_worker(name), prefix_cache=True, **changes)


def given(worker: str, *requests: Request) -> Assignment:
    return Assignment(worker, requests)


def holding(*worker_and_application: tuple[str, str]) -> PrefixHolders:
    holders = PrefixHolders()
    for name, application in worker_and_application:
        holders.place([given(name, of(application))], [caching(name)])
    return holders


def test_of_two_idle_workers_the_one_that_served_the_application_gets_it_again() -> None:
    holders = holding(("w1", "summary"), ("w2", "chat"))
    fleet = [caching("w1"), caching("w2")]
    assert ids(holders.place([given("w1", of("chat"))], fleet)) == {"w2": [["r"]]}
    assert ids(holders.place([given("w2", of("summary"))], fleet)) == {"w1": [["r"]]}
    assert ids(holders.place([given("w2", of("new"))], fleet)) == {"w2": [["r"]]}


def test_another_tenants_beginning_is_another_one() -> None:
    holders = holding(("w2", "chat"))
    fleet = [caching("w1"), caching("w2")]
    assert ids(holders.place([given("w1", of("chat", tenant="globex"))], fleet)) == {"w1": [["r"]]}


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
    batch = given("w1", of("chat", "a"), of("chat", "b"))
    assert ids(holding(("w2", "chat")).place([batch], fleet)) == {"w2": [["a", "b"]]}
    assert ids(holders.place([batch], [fleet[0], replace(fleet[1], **worse)])) == {"w1": [["a", "b"]]}


def test_what_a_worker_without_such_a_cache_or_with_rows_was_given_stays_there() -> None:
    holders = holding(("w2", "chat"))
    for chosen in (a_worker("w1"), caching("w1", rows=(a_row(),))):
        assert ids(holders.place([given("w1", of("chat"))], [chosen, caching("w2")])) == {"w1": [["r"]]}
    assert ids(holders.place([given("w1")], [caching("w1"), caching("w2")])) == {"w1": [[]]}


def test_batches_that_follow_each_other_on_one_worker_stay_together() -> None:
    two = [given("w1", of("chat", "a")), given("w1", of("chat", "b"))]
    assert ids(holding(("w2", "chat")).place(two, [caching("w1"), caching("w2")])) == {"w1": [["a"], ["b"]]}


def test_a_worker_that_was_left_free_can_be_given_the_next_batch() -> None:
    holders = holding(("w3", "chat"), ("w1", "summary"))
    batches = [given("w1", of("chat", "a")), given("w2", of("summary", "b"))]
    fleet = [caching(name) for name in ("w1", "w2", "w3")]
    assert ids(holders.place(batches, fleet)) == {"w3": [["a"]], "w1": [["b"]]}


def test_only_the_last_beginnings_of_a_worker_are_remembered() -> None:
    holders = holding(("w2", "oldest"), *[("w2", f"{n}") for n in range(MOST_PREFIXES)])
    fleet = [caching("w1"), caching("w2")]
    assert ids(holders.place([given("w1", of("oldest"))], fleet)) == {"w1": [["r"]]}
    assert ids(holders.place([given("w1", of("0"))], fleet)) == {"w2": [["r"]]}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_prefers_the_worker_that_served_the_application(name: str) -> None:
    policy = make_policy(name, PolicySettings())
    fleet = [caching("w1"), caching("w2")]
    used = []
    for turn, application in enumerate(["a", "b", "a", "b", "b", "a"]):
        policy.add(of(application, f"r{turn}"), 100.0 * turn)
        (assignment,) = policy.assign(fleet, 100.0 * turn + 50.0)
        policy.finished(assignment, 100.0 * turn + 60.0)
        used.append(assignment.worker)
    assert used[0] == used[2] == used[5]
    assert used[1] == used[3] == used[4]
