"""Rows leave a worker that has many for one that runs dry, where that pays by the costs of both."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import ServingCurves
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policy import Assignment, RunningRow, Worker
from scheduling.sharing.background.spare_capacity import SpareCapacity
from scheduling.sharing.model_changes import ModelChanges
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.sharing.rebalancing import (
    GONE_AFTER_S,
    LEAST_SAVED,
    LOOK_S,
    MOVE_S,
    Rebalancing,
    WorkerRows,
    rows_to_move,
)
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import (
    FLAT,
    a_line,
    a_memory,
    a_paged_worker,
    a_request,
    a_row,
    a_worker,
    examples,
    ids,
)

# A prefill takes 1 ms a token, an iteration 10 ms a row: twice the rows take twice the time, as on a CPU.
LINEAR = ServingCurves(prefill=(0.001, 0.0, 0.0, 0.0), decode=(0.0, 0.01, 0.0, 0.0))


def rows(count: int, remaining: int = 100) -> list[RunningRow]:
    """Rows of one worker; each has 10 tokens more to come than the one before it."""
    return [a_row(f"r{n}", predicted=remaining + 10 * n + 1) for n in range(count)]


def lines(count: int) -> list[RunningRow]:
    """Rows of a bulk job whose window is long."""
    return [RunningRow(a_line(f"l{n}", 200 + n, deadline_at=3600.0), 1, 0.0) for n in range(count)]


def two(running: list[RunningRow], **changes: Any) -> list[Worker]:
    """A worker with these rows, and one without rows that differs from it in `changes`."""
    return [a_worker("busy", costs=LINEAR, rows=running), replace(a_worker("dry", costs=LINEAR), **changes)]


def leaving(workers: list[Worker], policy: Rebalancing | None = None, now: float = 0.0) -> dict[str, tuple[str, ...]]:
    """The ids of the rows that leave, by the worker that they leave."""
    assigned = (Rebalancing(Fusion()) if policy is None else policy).assign(workers, now)
    assert not any(one.requests for one in assigned)
    return {one.worker: one.preempts for one in assigned}


def test_the_rows_that_would_end_last_leave_for_a_worker_without_rows():
    ((worker, left),) = leaving(two(rows(8))).items()
    assert worker == "busy"
    assert left == ("r7", "r6", "r5", "r4")  # beside half of the rows, every row takes about half of the time


def test_a_row_that_left_joins_the_worker_that_it_left_for_and_is_not_moved_again():
    policy, workers = Rebalancing(Fusion()), two(rows(8))
    left = leaving(workers, policy)["busy"]
    for row in workers[0].rows:
        if row.request.id in left:
            policy.add(replace(row.request, generated=row.generated), 0.1)
    assert len(policy) == 4
    assert [batch.requests[0].id for batch in policy.waiting(0.1)] == list(left)[::-1]
    busy = replace(workers[0], rows=workers[0].rows[:4])
    # the policy alone would let them join a third worker, which is as empty and comes first
    (joining,) = policy.assign([replace(workers[1], name="third"), busy, workers[1]], 0.1)
    assert (joining.worker, joining.joins, len(policy)) == ("dry", True, 0)
    assert sorted(request.id for request in joining.requests) == sorted(left)
    swapped = [replace(busy, rows=()), workers[1].given(joining, 0.1)]
    assert leaving(swapped, policy, 10.0) == {}


@pytest.mark.parametrize("gone", [True, False])
def test_if_that_worker_is_gone_or_full_the_policy_places_the_row(gone: bool):
    policy, workers = Rebalancing(Fusion()), two(rows(8))
    left = leaving(workers, policy)["busy"]
    for row in workers[0].rows[4:]:
        policy.add(replace(row.request, generated=row.generated), 0.1)
    full = replace(workers[1], rows=(a_row("huge", length=9_900, predicted=90),))
    others = [] if gone else [full]
    assert ids(policy.assign([replace(workers[0], rows=()), *others], 0.1)) == {"busy": [list(left)[::-1]]}


def test_a_row_that_was_cancelled_on_its_way_joins_nowhere():
    policy, workers = Rebalancing(Fusion()), two(rows(8))
    leaving(workers, policy)
    policy.add(replace(workers[0].rows[7].request, generated=1), 0.1)
    assert policy.discard("r7")
    assert not policy.discard("r7")
    assert (len(policy), policy.assign(two(rows(4)), 0.1)) == (0, [])  # it has looked for dry workers at 0.0


@pytest.mark.parametrize(
    ("why", "workers"),
    [
        ("further rows cost nothing", [a_worker("busy", costs=FLAT, rows=rows(8)), a_worker("dry", costs=FLAT)]),
        ("they end within the time of a move", two(rows(3, remaining=1))),
        ("there is no other worker", two(rows(8))[:1]),
        ("the other has more than half as many", two(rows(8), rows=tuple(rows(5)))),
        ("the other serves a batch apart", two(rows(8), queued=1)),
        ("the other cannot do the same", two(rows(8), lacks=frozenset({"logprobs"}))),
        ("a server begins some rows anew", [replace(one, lacks=frozenset({"landing"})) for one in two(rows(8))]),
        ("the other has a row of a higher tier", two(rows(8), rows=(a_row("first", tier="priority"),))),
        ("they are lines beside another's row", two(lines(8), rows=(a_row("first"),))),
        ("no worker lives", []),
    ],
)
def test_rows_stay_if(why: str, workers: list[Worker]):
    assert leaving(workers) == {}


def test_rows_stay_while_a_request_waits():
    policy, workers = Rebalancing(Fusion()), two(rows(8))
    policy.add(a_request("too large for any worker", length=20_000), 0.0)
    assert leaving(workers, policy) == {}


@pytest.mark.parametrize("changes", [{"generated": 1}, {"deadline_at": -1.0}, {"deadline_at": 30.0}])
def test_rows_that_came_back_before_and_those_with_a_near_deadline_stay(changes: dict[str, Any]):
    stay = [replace(row, request=replace(row.request, **changes), generated=2) for row in rows(8)]
    assert leaving(two(stay)) == {}


def test_rows_move_to_a_worker_with_less_memory_if_it_holds_each_of_them_to_its_limit():
    running = [replace(row, request=replace(row.request, limit=990)) for row in rows(8)]  # 1,000 tokens with the prompt
    left = [leaving(two(running, memory=a_memory(tokens))) for tokens in (1_000, 999)]
    assert [[*one] for one in left] == [["busy"], []]


def test_rows_move_between_equal_workers_also_while_those_of_one_share_a_beginning():
    busy, dry = two([replace(row, request=replace(row.request, limit=990)) for row in rows(8)])
    assert leaving([replace(busy, memory=busy.memory.sharing(10)), dry])


def test_a_row_without_a_token_stays_because_its_prefill_would_be_lost():
    assert leaving(two([replace(row, generated=0) for row in rows(8)])) == {}


def test_no_further_row_leaves_before_those_that_were_told_to_have_left():
    policy, workers = Rebalancing(Fusion()), two(rows(8))
    assert leaving(workers, policy)
    assert leaving(workers, policy, 1.0) == {}
    without = two(rows(4))  # they have ended meanwhile
    assert leaving(without, policy, 1.0 + LOOK_S / 2) == {}
    assert leaving(without, policy, 1.0 + LOOK_S) == {"busy": ("r3", "r2")}


def test_a_row_that_was_told_to_leave_and_stays_holds_the_others_up_for_a_while_only():
    policy, workers = Rebalancing(Fusion()), two(rows(8))
    assert leaving(workers, policy)
    assert leaving(workers, policy, GONE_AFTER_S - 0.1) == {}
    assert leaving(workers, policy, GONE_AFTER_S + LOOK_S)


def test_a_fast_worker_that_runs_dry_takes_the_only_row_of_a_slow_one():
    slow = a_worker("slow", costs=ServingCurves((0.001, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.1)), rows=rows(1))
    fast = a_worker("fast", costs=ServingCurves((0.001, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.01)))
    assert leaving([slow, fast]) == {"slow": ("r0",)}
    assert leaving([replace(slow, rows=()), replace(fast, rows=slow.rows)]) == {}


def test_only_rows_leave_that_the_other_worker_has_room_for():
    busy, dry = (a_paged_worker(10_000, costs=LINEAR, name=name, max_rows=n) for name, n in (("busy", 9), ("dry", 2)))
    assert leaving([replace(busy, rows=tuple(rows(8))), dry]) == {"busy": ("r7", "r6")}


def test_several_workers_that_run_dry_take_rows_of_several():
    busy = [
        a_worker(f"busy{n}", costs=LINEAR, rows=[a_row(f"{n}{m}", predicted=200) for m in range(6)]) for n in (0, 1)
    ]
    left = leaving([*busy, *two([])])
    assert {worker: {one[0] for one in gone} for worker, gone in left.items()} == {"busy0": {"0"}, "busy1": {"1"}}


def test_rows_that_did_not_fit_when_they_joined_wait_in_the_policy():
    policy = Rebalancing(Fusion())
    policy.out_of_memory(Assignment("dry", (a_request("one"), a_request("other")), joins=True), 0.0)
    assert len(policy) == 2
    assert ids(policy.assign(two([]), 0.0)).keys() <= {"busy", "dry"}


def test_rows_of_background_requests_move_too():
    policy = make_policy("fusion", PolicySettings())
    (move,) = policy.assign(two(lines(6)), 0.0)
    assert (move.worker, move.preempts) == ("busy", ("l5", "l4", "l3"))
    policy.add(replace(lines(6)[5].request, generated=1), 0.1)
    assert ids(policy.assign(two(lines(3)), 0.1)) == {"dry": [["l5"]]}


def test_rows_that_an_earlier_planner_assigned_move_before_any_request_comes():
    policies = ModelChanges(partial(make_policy, "fusion", PolicySettings()))
    (move,) = policies.assign(two(rows(8)), 0.0)
    assert (move.worker, move.preempts) == ("busy", ("r7", "r6", "r5", "r4"))


def test_a_burst_ends_sooner_if_one_worker_is_slower_than_its_costs_say():
    # 48 requests that come at once; both workers are believed to be equal, but one needs 1.5 times as long.
    arrivals = [Arrival(a_request(f"q{n}", 0.0, 10, 50 + n), 50 + n) for n in range(48)]
    fleet = [Instance(name, a_memory(100_000), speed, LINEAR) for name, speed in (("a", 1.0), ("b", 1 / 1.5))]
    with_moves, without = (
        simulate(policy, arrivals, fleet, EngineCosts(LINEAR), seed=0)
        for policy in (Rebalancing(SpareCapacity(Fusion)), SpareCapacity(Fusion))
    )
    assert len(with_moves.answers) == len(without.answers) == 48
    assert all(answer.generated == 50 + int(answer.id[1:]) for answer in with_moves.answers.values())
    assert max(answer.schedules for answer in with_moves.answers.values()) == 2
    assert with_moves.makespan_s < 0.95 * without.makespan_s


costs = st.tuples(*[st.floats(0.0, 1e-3)] * 2, *[st.floats(0.0, 0.05)] * 2)
some_rows = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300), st.booleans()), max_size=12)


@examples(200)
@given(many=some_rows, few=some_rows, costs=st.lists(costs, min_size=4, max_size=4), paged=st.booleans())
def test_no_move_makes_the_last_end_later_or_leaves_a_row_at_two_places(many, few, costs, paged):
    sides = []
    for name, drawn, prefill, decode in (("many", many, costs[0], costs[1]), ("few", few, costs[2], costs[3])):
        curves = ServingCurves(prefill, (decode[0] / 10, decode[2], decode[1] / 10, decode[3] + 1e-4))
        running = [
            RunningRow(a_request(f"{name}{n}", 0.0, length, to_come + 2, generated=int(again)), 2, 0.0)
            for n, (length, to_come, again) in enumerate(drawn)
        ]
        sides.append(
            a_paged_worker(5_000, running, costs=curves, name=name)
            if paged
            else a_worker(name, 5_000, curves, rows=running)
        )
    many, few = before = WorkerRows.of(sides)
    left = rows_to_move(many, few, 0.0)
    here, there = sides
    moved = [row for row in here.rows if row.request.id in left]
    after = (
        here.given(Assignment("many", (), joins=True, preempts=left), 0.0),
        there.given(
            Assignment("few", tuple(replace(row.request, generated=row.generated) for row in moved), joins=True), 0.0
        ),
    )
    assert sorted(row.request.id for worker in after for row in worker.rows) == sorted(
        row.request.id for worker in sides for row in worker.rows
    )
    assert not any(row.request.generated for row in moved)
    if left:
        assert isinstance(there.costs, ServingCurves)
        stays, joins = WorkerRows.of(after)
        prefill_s = there.costs.prefill_s(
            len(moved), int(np.mean([row.request.length + row.generated for row in moved]))
        )
        arrived_s = MOVE_S + prefill_s
        assert max(stays.last_s(), joins.last_s() + arrived_s) <= max(one.last_s() for one in before)
        summed_s = stays.ends_s().sum() + joins.ends_s().sum() + len(left) * MOVE_S + prefill_s * len(after[1].rows)
        assert summed_s < (1 - LEAST_SAVED) * sum(one.ends_s().sum() for one in before)
        assert joins.fit()


@pytest.mark.parametrize("paged", [True, False])
def test_rows_end_when_iterations_of_the_rows_that_are_left_add_up_to_it(paged: bool):
    curves = ServingCurves((0.0, 0.0, 0.0, 0.0), (1e-4, 1e-2, 1e-3, 0.1))
    running = [a_row("a", 50, 10, 13), a_row("b", 20, 1, 3), a_row("c", 90, 5, 12)]  # 3, 2 and 7 tokens to come
    worker = a_paged_worker(1_000, running, costs=curves) if paged else a_worker(costs=curves, rows=running)
    at, ends, tokens = 0.0, {}, {row.request.id: row.request.length + row.generated for row in running}
    for _ in range(7):
        tokens = {name: cached + 1 for name, cached in tokens.items()}
        read = sum(tokens.values()) / len(tokens) if paged else max(tokens.values())
        at += curves.decode_step_s(len(tokens), read)
        for row in running:
            if tokens.get(row.request.id) == row.request.length + row.request.predicted:
                ends[row.request.id] = at
                del tokens[row.request.id]
    (rows_of,) = WorkerRows.of([worker])
    assert rows_of.ends_s() == pytest.approx([ends["b"], ends["a"], ends["c"]])
