"""Continuous batches in the simulator: by hand with FLAT, and against a loop that steps token by token."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from scheduling.batch_partition import prefill_groups
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policy import Assignment
from scheduling.request import Request, reserve_limit
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.event_queue import ROUNDING_S
from scheduling.simulation.simulated_batch import ContinuousBatch
from scheduling.simulation.simulated_worker import Instance, SimulatedWorker
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_memory, a_request, examples
from tests.unit.scheduling.simulation.test_simulator import COSTS, Scripted, a_fleet, an_arrival, finished


def joins(at: float, *names: str, length: int = 10, preempts: tuple[str, ...] = ()) -> tuple[float, Assignment]:
    requests = tuple(a_request(name, length=length) for name in names)
    return at, Assignment("w0", requests, joins=True, preempts=preempts)


def test_rows_leave_one_by_one_and_joiners_stall_the_others() -> None:
    policy = Scripted("continuous", [joins(0.0, "a", "b"), joins(0.35, "c")])
    arrivals = [an_arrival("a", total=10), an_arrival("b", total=2), an_arrival("c", total=3)]
    trace = simulate(policy, arrivals, a_fleet(), EngineCosts(FLAT, join_s=0.05), seed=0)
    # prefill 0.02; b is done at 0.22; c comes at 0.35, waits for the iteration that ends at 0.42, prefills for
    # 0.05 + 0.01 until 0.48, and is done at 0.78; a had 4 of 10 at 0.42, so 6 more from 0.48: 1.08
    assert finished(trace) == {"a": 1.08, "b": 0.22, "c": 0.78}
    assert trace.tokens.iterations == 10
    assert trace.batch_size_mean == pytest.approx(1.5)  # (2 + 2 + 1 + 1) + (2 + 2 + 2) + (1 + 1 + 1) over 10
    assert trace.busy_s["w0"] == pytest.approx(1.08)


@given(
    growth_s=st.floats(-30, -3).map(lambda exponent: 10**exponent) | st.just(0.0),
    step_s=st.floats(-5, 0).map(lambda exponent: 10**exponent),
    iterations=st.integers(1, 5000),
    began_at=st.sampled_from([0.0, 1.8e9]),
)
@example(growth_s=1e-22, step_s=1e-3, iterations=18, began_at=1.8e9)  # a planner had waited for its end for ever
def test_an_iteration_has_ended_at_the_instant_at_which_it_is_expected_to_end(
    growth_s: float, step_s: float, iterations: int, began_at: float
) -> None:
    costs = EngineCosts(ServingCurves((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, growth_s, step_s)))
    batch = ContinuousBatch(costs, a_memory(10**6))
    batch.join([a_request("a", limit=10**4)], [10**4], began_at)
    assert batch.iteration_at(batch.at + batch.decode_s(iterations)) == iterations


@pytest.mark.parametrize(
    ("capacity", "shared", "c_ends_at"),
    [
        (100, {"one": 6}, 2.104),  # of c's 10 tokens, a has left 6
        (100, {}, 2.11),
        (12, {"one": 6, "other": 7}, 2.11),  # 6 + 7 tokens are too many, so that b's displace a's
    ],
)
def test_a_beginning_that_is_cached_is_not_prefilled_again(
    capacity: int, shared: dict[str, int], c_ends_at: float
) -> None:
    applications = {"a": "one", "b": "other", "c": "one"}
    script = [
        (float(at), Assignment("w0", (replace(a_request(name), application=application),), joins=True))
        for at, (name, application) in enumerate(applications.items())
    ]
    arrivals = [an_arrival(name, total=1) for name in applications]
    fleet, costs = [Instance("w0", a_memory(capacity))], EngineCosts(FLAT, shared_tokens=shared)
    # 10 tokens take 0.01 s, and an iteration 0.1 s
    ends = finished(simulate(Scripted("continuous", script), arrivals, fleet, costs, seed=0))
    assert ends == {"a": 0.11, "b": 1.11, "c": c_ends_at}


def of_application(name: str, application: str) -> Request:
    return replace(a_request(name, length=10), application=application)


def test_paged_memory_holds_once_what_rows_share_and_rectangles_hold_it_for_each() -> None:
    one, other = ([of_application(f"{name}{n}", name) for n in range(3)] for name in ("one", "other"))
    costs = EngineCosts(FLAT, shared_tokens={"one": 6})
    paged, rectangle = (ContinuousBatch(costs, replace(a_memory(21), paged=paged)) for paged in (True, False))
    # each row grows by a token: 10 + 4 + 4 + 3 of 21
    assert (paged.fits(one), paged.fits(other), rectangle.fits(one)) == (True, False, False)
    paged.join(one, [5, 5, 5], now=0.0)
    assert paged.shared_tokens == 12
    assert not paged.fits([of_application("one3", "one")])
    assert paged.next_event() == 1  # three more tokens, then memory is full
    paged.leave("one2")
    assert paged.shared_tokens == 6
    assert paged.next_event() == 3  # 21 - 14 tokens for two rows


def test_a_policy_sees_the_memory_that_sharing_saves() -> None:
    worker = SimulatedWorker(
        Instance("w0", replace(a_memory(40), paged=True)),
        EngineCosts(FLAT, shared_tokens={"one": 6}),
        {"a": 5, "b": 5},
        np.random.default_rng(0),
    )
    worker.accept(Assignment("w0", (of_application("a", "one"), of_application("b", "one")), joins=True), 0.0)
    worker.advance(0.0)
    assert worker.describe(0.0).memory.capacity_tokens == 46
    worker.advance(10.0)
    assert worker.describe(10.0).memory.capacity_tokens == 40


def test_joiners_of_different_length_are_prefilled_apart() -> None:
    requests = tuple(a_request(name, length=length) for name, length in (("long", 320), ("s0", 100), ("s1", 100)))
    policy = Scripted("continuous", [(0.0, Assignment("w0", requests, joins=True))])
    arrivals = [an_arrival(request.id, length=request.length, total=1) for request in requests]
    (first, *others) = finished(simulate(policy, arrivals, a_fleet(), EngineCosts(SLOPED), seed=0)).values()
    prefill_s = SLOPED.prefill_s(1, 320) + SLOPED.prefill_s(2, 100)
    assert others == [first, first]
    assert first == pytest.approx(prefill_s + SLOPED.decode_step_s(3, 321), abs=1e-3)


def test_a_chunked_prefill_lets_the_others_go_on() -> None:
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.15, "b", length=20)])
    arrivals = [an_arrival("a", total=10), an_arrival("b", length=20, total=3)]
    trace = simulate(policy, arrivals, a_fleet(), EngineCosts(FLAT, chunk_tokens=10), seed=0)
    # a prefills until 0.01; b comes at 0.15, enters at 0.21 after a's second token; its 20 ms of prefill are two
    # chunks, each with an iteration of a: 0.43; three iterations more: 0.73; a: 10 iterations + 0.01 + 0.02 = 1.03
    assert finished(trace) == {"a": 1.03, "b": 0.73}


def test_a_chunked_prefill_that_nobody_waits_for_runs_on_at_once() -> None:
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.05, "b", length=100)])
    arrivals = [an_arrival("a", total=2), an_arrival("b", length=100, total=1)]
    trace = simulate(policy, arrivals, a_fleet(), EngineCosts(FLAT, chunk_tokens=10), seed=0)
    # b enters at 0.11; ten chunks of 10 ms; a leaves after one of them at 0.22; the other nine take 0.09: 0.31, 0.41
    assert finished(trace) == {"a": 0.22, "b": 0.41}


def test_joiners_wait_while_others_are_prefilled_in_chunks_and_are_described_meanwhile() -> None:
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.05, "b", length=20), joins(0.15, "c"), joins(0.16)])
    arrivals = [an_arrival("a"), an_arrival("b", length=20), an_arrival("c")]
    trace = simulate(policy, arrivals, a_fleet(), EngineCosts(FLAT, chunk_tokens=10), seed=0)
    at, (worker,) = policy.offered[3]
    assert at == 0.16
    assert [(row.request.id, row.generated) for row in worker.rows] == [("a", 1), ("b", 0), ("c", 0)]
    assert len(trace.answers) == 3


def test_a_preempted_row_comes_back_with_its_tokens() -> None:
    policy = Scripted("continuous", [joins(0.0, "a", "b"), joins(0.25, "c", preempts=("a", "gone")), joins(0.26)])
    trace = simulate(policy, [an_arrival(name) for name in "abc"], a_fleet(), COSTS, seed=0)
    # prefill until 0.02; at 0.25 the third iteration is under way, it ends at 0.32
    assert policy.came[3] == (0.32, a_request("a", generated=3))
    assert trace.preempted == 1
    _, (worker,) = policy.offered[2]
    assert [row.request.id for row in worker.rows] == ["b", "c"]


def test_rows_that_make_way_leave_a_slot_for_the_joiner() -> None:
    at, waits = joins(0.05, "b", preempts=("a",))
    policy = Scripted("continuous", [joins(0.0, "a"), (at, replace(waits, most_rows=1)), joins(0.06)])
    trace = simulate(policy, [an_arrival("a"), an_arrival("b", total=2)], a_fleet(), COSTS, seed=0)
    assert trace.answers["b"].finished_at == pytest.approx(0.32)  # in a's place at 0.11, after a prefill of 0.01


def test_rows_may_join_for_a_number_of_iterations() -> None:
    request = a_request("a")
    policy = Scripted("continuous", [(0.0, Assignment("w0", (request,), iteration_limit=4, joins=True))])
    simulate(policy, [an_arrival("a")], a_fleet(), COSTS, seed=0)
    assert policy.came[1] == (0.41, a_request("a", generated=4))


def test_joiners_that_do_not_fit_are_handed_back() -> None:
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.05, "b", "c")])
    simulate(policy, [an_arrival(name) for name in "abc"], a_fleet(35), COSTS, seed=0)
    assert [[request.id for request in assignment.requests] for assignment in policy.beyond] == [["b", "c"]]


@pytest.mark.parametrize(
    "memory", [KvMemory(40, 1), KvMemory(40, 1, paged=True), KvMemory(42, 1, paged=True, block_tokens=3)]
)
def test_when_rows_outgrow_the_memory_the_last_one_waits_there_until_it_fits(memory: KvMemory) -> None:
    # 40 tokens, a of 10 and b of 11. Rectangular: two rows of 11 + 9 fill it. Paged: 10 + 11 + 2·9 = 39 do; in blocks
    # of 3 each row takes one token more.
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.001, "b", length=11), joins(1.0)])
    arrivals = [an_arrival("a", total=15), an_arrival("b", length=11, total=15), an_arrival("asks", at=1.0)]
    trace = simulate(policy, arrivals, [Instance("w0", memory)], EngineCosts(FLAT), seed=0)
    # prefills until 0.021; b leaves after nine iterations, at 0.921; a runs on until 1.521; b is prefilled for 0.02 s,
    # with its nine tokens, and has its six further tokens 0.6 s later
    assert finished(trace) == {"a": 1.521, "b": 2.141}
    assert trace.preempted == 1
    _, (worker,) = policy.offered[2]
    assert [(row.request.id, row.generated) for row in worker.rows] == [("a", 9), ("b", 9)]


OUTGROWN = [an_arrival("a", total=15), an_arrival("b", length=11, total=15), an_arrival("c")]


def test_joiners_that_do_not_fit_beside_preempted_rows_are_handed_back() -> None:
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.001, "b", length=11), joins(1.0, "c")])
    simulate(policy, [*OUTGROWN[:2], an_arrival("c", at=1.0)], a_fleet(40), EngineCosts(FLAT), seed=0)
    assert [[request.id for request in assignment.requests] for assignment in policy.beyond] == [["c"]]


def test_a_preempted_row_that_waits_at_its_worker_can_be_called_back() -> None:
    back = joins(1.0, preempts=("b",))
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.001, "b", length=11), back])
    simulate(policy, [*OUTGROWN[:2], an_arrival("asks", at=1.0)], a_fleet(40), EngineCosts(FLAT), seed=0)
    assert [request for _, request in policy.came[3:]] == [a_request("b", length=11, generated=9)]


def test_a_preempted_row_comes_back_when_its_worker_leaves() -> None:
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.001, "b", length=11)])
    fleet = [Instance("w0", a_memory(40), leaves_at=1.0)]
    simulate(policy, OUTGROWN[:2], fleet, EngineCosts(FLAT), seed=0)
    assert sorted(request.id for at, request in policy.came if at == 1.0) == ["a", "b"]


def test_a_row_that_outgrows_the_memory_alone_is_handed_back_or_fails() -> None:
    policy = Scripted("continuous", [joins(0.0, "a")])
    trace = simulate(policy, [an_arrival("a", total=20)], a_fleet(25, 100), COSTS, seed=0)
    assert policy.beyond == []
    assert [request for _, request in policy.came[1:]] == [
        replace(reserve_limit(a_request("a", generated=15)), outgrew_tokens=25)
    ]
    policy = Scripted("continuous", [joins(0.0, "a")])
    trace = simulate(policy, [an_arrival("a", total=20)], a_fleet(25), COSTS, seed=0)
    assert list(trace.failed) == ["a"]


def test_work_that_is_joining_or_being_prefilled_when_the_worker_leaves_comes_back() -> None:
    fleet = [Instance("w0", a_memory(10_000), leaves_at=0.12)]
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.05, "b", length=40), joins(0.115, "c")])
    arrivals = [an_arrival("a"), an_arrival("b", length=40), an_arrival("c")]
    simulate(policy, arrivals, fleet, EngineCosts(FLAT, chunk_tokens=10), seed=0)
    assert [request.id for at, request in policy.came if at == 0.12] == ["c", "a", "b"]


def stepped(arrivals: list[Arrival], slots: int, costs: EngineCosts, paged: bool) -> dict[str, float]:
    """Serves arrivals in fixed slots on one worker, iteration by iteration; returns when each request ended."""
    coming, waiting = deque(arrivals), deque[Arrival]()
    rows: dict[str, list[int]] = {}  # tokens cached, tokens to come
    joining: list[list[Arrival]] = []
    at, done = 0.0, dict[str, float]()

    def come(now: float) -> None:
        # Within ROUNDING_S of another event the simulator's clock takes an arrival for simultaneous; sums here do not.
        assume(not (rows and coming) or abs(coming[0].request.arrived_at - now) > 10 * ROUNDING_S)
        while coming and coming[0].request.arrived_at <= now:
            instant = coming[0].request.arrived_at
            while coming and coming[0].request.arrived_at == instant:
                waiting.append(coming.popleft())
            fill()

    def fill() -> None:
        free = slots - len(rows) - sum(map(len, joining))
        if group := [waiting.popleft() for _ in range(min(free, len(waiting)))]:
            joining.append(group)

    def enter() -> None:
        nonlocal at
        while joining:
            group = joining.pop(0)
            at += costs.join_s if rows else 0.0
            for alike in prefill_groups([arrival.request for arrival in group], costs.curves):
                at += costs.curves.prefill_s(len(alike), max(request.length for request in alike))
            rows.update((a.request.id, [a.request.length, a.generation_length]) for a in group)
            come(at)

    while coming or joining or rows:
        if not rows and not joining:
            at = max(at, coming[0].request.arrived_at)
            come(at)
        enter()
        cached = [row[0] for row in rows.values()]
        longest = sum(cached) / len(cached) if paged else max(cached)
        ends_at = at + costs.curves.decode_step_s(len(rows), longest + 1)
        come(ends_at)
        at = ends_at
        for name, row in list(rows.items()):
            row[0] += 1
            row[1] -= 1
            if not row[1]:
                done[name] = at
                del rows[name]
        enter()
        fill()
    return done


ARRIVALS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200), st.integers(1, 40)), min_size=1, max_size=25)


@pytest.mark.parametrize("paged", [True, False])
@examples(30)
@given(ARRIVALS, st.integers(1, 6))
def test_closed_forms_equal_stepping_token_by_token(paged: bool, drawn: list[tuple[int, int, int]], slots: int) -> None:
    arrivals = [
        an_arrival(f"{number:02}", at=moment * 0.0171, length=length, total=total)
        for number, (moment, length, total) in enumerate(sorted(drawn))
    ]
    costs = EngineCosts(SLOPED, join_s=0.01)
    policy = ConservativeContinuous(1024, 1024, slots=slots, sends_ahead=False)
    trace = simulate(policy, arrivals, [Instance("w0", KvMemory(10**6, 1, paged))], costs, seed=0)
    expected = stepped(arrivals, slots, costs, paged)
    assert {name: answer.finished_at for name, answer in trace.answers.items()} == pytest.approx(expected)
    assert trace.tokens.valid == sum(arrival.generation_length for arrival in arrivals)


def test_a_worker_takes_no_more_rows_than_it_says() -> None:
    policy = Scripted("continuous", [joins(0.0, "a"), joins(0.05, "b", "c")])
    memory = KvMemory(10**6, 1, paged=True, max_rows=2)
    simulate(policy, [an_arrival(name) for name in "abc"], [Instance("w0", memory)], COSTS, seed=0)
    assert [[request.id for request in assignment.requests] for assignment in policy.beyond] == [["b", "c"]]
