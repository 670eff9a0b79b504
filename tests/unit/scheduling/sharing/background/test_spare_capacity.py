"""Background requests get what others leave, the longest first, and count as others as their deadline nears."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.baton import Baton
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policy import Assignment, RunningRow
from scheduling.sharing.ability_groups import AbilityGroups
from scheduling.sharing.background.spare_capacity import SpareCapacity
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import (
    SLOPED,
    a_job,
    a_line,
    a_memory,
    a_request,
    a_row,
    a_worker,
    examples,
    ids,
)


def test_an_idle_worker_that_the_waiting_ones_cannot_use_serves_the_background() -> None:
    policy = SpareCapacity(lambda: AbilityGroups(Fusion))
    policy.add(a_line("line"), 0.0)
    policy.add(replace(a_request("other"), needs=frozenset({"logprobs"})), 0.0)
    idle = replace(a_worker(), lacks=frozenset({"logprobs"}))
    assert ids(policy.assign([idle], 0.0)) == {"w": [["line"]]}
    assert len(policy) == 1


def joiners(policy: SpareCapacity, rows: int, now: float) -> int:
    """How many more rows join a worker that runs `rows` rows of a hundred tokens each and has memory for ten."""
    lines = tuple(a_line(f"running{number}", 90) for number in range(rows))
    worker = a_worker(tokens=1000)
    worker = worker.given(Assignment("w", lines, joins=True), now) if lines else worker
    policy.assign([worker], now)  # they wait until joining as a group is worth its cost
    return sum(len(one.requests) for one in policy.assign([worker], now + 10.0))


def others_came(at: float) -> SpareCapacity:
    """A policy to which others' requests came at `at`, none of which waits any more."""
    policy = SpareCapacity(Fusion)
    policy.add(a_request("other"), at)
    policy.discard("other")
    return policy


@pytest.mark.parametrize("running", [0, 2])
def test_a_part_of_the_memory_stays_free_of_background_requests_while_others_come(running: int) -> None:
    counts = []
    for other_at in (100.0, 0.0):  # lately, and long ago
        policy = others_came(other_at)
        for number in range(50):
            policy.add(a_line(f"b{number:02}", 90), 0.0)
        counts.append(running + joiners(policy, running, 120.0))
    assert 0 < counts[0] <= 6 < counts[1] <= 10  # memory for ten rows, of which the background may fill 0.6


def test_a_worker_is_left_to_the_others_while_they_come() -> None:
    policy = others_came(0.0)
    for number in range(100):
        policy.add(a_line(f"b{number:02}", 90), 0.0)
    workers = [a_worker(name, tokens=1000) for name in ("a", "b", "c", "d", "e")]
    policy.assign(workers, 1.0)  # they wait until joining as a group is worth its cost
    assert {assignment.worker for assignment in policy.assign(workers, 10.0)} == {"a", "b", "c", "d"}


def test_others_join_at_once_where_background_rows_fill_every_worker() -> None:
    policy = SpareCapacity(Fusion)
    policy.add(a_line("line", 90), 0.0)
    policy.add(a_request("other", predicted=90), 0.0)
    fleet = {name: a_worker(name, tokens=1000, rows=[a_line_row(f"{n}{name}", n) for n in range(10)]) for name in "ab"}
    (assignment,) = policy.assign(list(fleet.values()), 0.0)
    chosen = assignment.worker
    assert [request.id for request in assignment.requests] == ["other"]
    assert assignment.preempts == tuple(f"{n}{chosen}" for n in reversed(range(10)))
    policy.add(a_request("next", predicted=90), 0.1)  # while the rows are still leaving
    fleet[chosen] = fleet[chosen].given(replace(assignment, preempts=()), 0.0)
    (assignment,) = policy.assign(list(fleet.values()), 0.1)
    assert (assignment.worker, assignment.preempts) == (chosen, ())


def test_others_that_do_not_fit_on_their_own_workers_join_those_of_the_background() -> None:
    policy = SpareCapacity(Baton)
    policy.add(a_line("line", 90), 0.0)
    policy.add(a_request("other", predicted=90), 0.0)
    full = a_worker("e", tokens=1000, rows=[RunningRow(a_request("running", length=900, predicted=90), 1, 0.0)])
    assignments = policy.assign([*(a_worker(name, tokens=1000) for name in "abcd"), full], 1.0)
    (joined,) = (one.worker for one in assignments if "other" in {request.id for request in one.requests})
    assert joined != "e"


def a_line_row(name: str, joined: float) -> RunningRow:
    """A row that will hold a hundred tokens."""
    return RunningRow(a_line(name, 90), 1, joined)


def test_parked_rows_are_resumed_and_others_wait_for_none_of_them() -> None:
    fleet = [Instance(f"w{n}", a_memory(15_000)) for n in range(2)]
    others = [Arrival(a_request(f"other{n}", 5.0 + n, 200, 100), 100) for n in range(20)]
    bulk = a_job("a", 150)
    for name in ("fusion", "baton"):
        alone, beside = (
            simulate(make_policy(name, PolicySettings()), some, fleet, EngineCosts(SLOPED), seed=0)
            for some in (others, [*bulk, *others])
        )
        assert len(beside.answers) == len(bulk) + len(others)
        assert beside.preempted
        slowed = [
            beside.answers[one.request.id].response_s / alone.answers[one.request.id].response_s for one in others
        ]
        assert max(slowed) <= 1.3


def test_what_needs_more_than_that_part_runs_on_an_empty_worker_though_others_come() -> None:
    policy = others_came(0.0)
    policy.add(a_request("large", length=900, predicted=90, tier="flex"), 0.0)
    assert ids(policy.assign([a_worker(tokens=1000)], 1.0)) == {"w": [["large"]]}


def test_a_request_that_the_policy_has_seen_goes_ahead_too() -> None:
    policy = SpareCapacity(Fusion)
    policy.add(a_line("fed", 90, deadline_at=100.0), 0.0)
    full = a_worker(tokens=100).given(Assignment("w", (a_request("row", predicted=80),), joins=True), 0.0)
    assert policy.assign([full], 0.0) == []
    policy.add(a_line("longer", 95), 0.0)
    assert policy.assign([full], 60.0) == []
    assert [request.id for batch in policy.waiting(60.0) for request in batch.requests] == ["fed", "longer"]


def test_within_a_tenant_the_job_whose_deadline_nears_gets_the_larger_share() -> None:
    policy = SpareCapacity(Baton)
    for number in range(40):
        policy.add(a_line(f"soon{number:02}", 30, job="soon", deadline_at=120.0), 0.0)
        policy.add(a_line(f"late{number:02}", 30, job="late", deadline_at=1e6), 0.0)
    joined = ""
    policy.assign([a_worker(busy=True, tokens=800)], 0.0)  # twenty rows of 40 tokens: 10 s for each job, and 3 s
    for now in range(20):
        for assignment in policy.assign([a_worker(tokens=60)], float(now)):
            joined += "".join(request.job[0] for request in assignment.requests)
    assert joined[:60].count("s") > 1.4 * joined[:60].count("l") > 0


def test_it_forgets_what_is_discarded_wherever_it_waits() -> None:
    policy = SpareCapacity(Fusion)
    for number in range(70):
        policy.add(a_line(f"b{number}", 10 + number), 0.0)
    policy.add(a_request("other"), 0.0)
    policy.assign([a_worker(tokens=21)], 0.0)
    before = len(policy)
    waiting = [request.id for batch in policy.waiting(1.0) for request in batch.requests]
    assert len(waiting) == before
    for left, request_id in enumerate(reversed(waiting)):
        assert policy.discard(request_id)
        assert not policy.discard(request_id)
        assert len(policy) == before - left - 1


def test_background_requests_never_make_rows_of_the_others_leave() -> None:
    policy = SpareCapacity(Baton)
    policy.add(a_request("other"), 0.0)
    policy.assign([a_worker()], 0.0)
    policy.add(a_line("line"), 0.0)
    # the others' two rows hold 2 · 1,001 tokens; of the worker's 10,000, background requests see at most
    # 0.6 · (10,000 - 3.5 · 2,002) = 1,795
    rows = [a_row(name, length=1000, predicted=1) for name in ("a", "b")]
    assert policy.assign([a_worker(rows=rows)], 1.0) == []


@examples(20)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.booleans(), st.booleans()), min_size=1, max_size=30)
)
def test_every_request_is_answered_once_whatever_its_class(drawn: list[tuple[int, int, bool, bool]]) -> None:
    arrivals = []
    for number, (moment, tokens, in_background, has_deadline) in enumerate(drawn):
        deadline_at = moment + 30.0 if has_deadline else None
        request = a_request(f"r{number}", float(moment), 20, tokens, limit=60, deadline_at=deadline_at)
        arrivals.append(Arrival(replace(request, tier="flex" if in_background else "default"), tokens))
    fleet = [Instance("w0", a_memory(161)), Instance("w1", a_memory(400))]
    trace = simulate(SpareCapacity(Fusion), arrivals, fleet, EngineCosts(SLOPED), seed=0)
    assert sorted(trace.answers) == sorted(arrival.request.id for arrival in arrivals)


def test_a_background_request_that_others_could_not_fit_beside_runs_on_an_empty_worker() -> None:
    policy = SpareCapacity(Fusion)
    policy.add(a_request("large", length=90, predicted=9, tier="flex"), 0.0)
    assert ids(policy.assign([a_worker(tokens=100)], 0.0)) == {"w": [["large"]]}


def test_a_request_that_did_not_fit_memory_still_goes_ahead() -> None:
    policy = SpareCapacity(Baton)
    line = a_line("line", deadline_at=100.0)
    policy.add(line, 0.0)
    (assignment,) = policy.assign([a_worker()], 0.0)
    policy.out_of_memory(assignment, 1.0)
    policy.assign([a_worker(busy=True)], 90.0)
    (batch,) = policy.waiting(60.0)
    assert not batch.requests[0].background
