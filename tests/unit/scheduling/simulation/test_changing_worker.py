"""A worker finishes or returns its work, loads, and then serves the other model; in figures that add up by hand."""

from dataclasses import replace

import pytest

from scheduling.policy import Assignment
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance, LoadableModel
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_request
from tests.unit.scheduling.simulation.test_simulator import Scripted, finished

COSTS = EngineCosts(FLAT)
SLOW = EngineCosts(replace(FLAT, decode=(0.0, 0.0, 0.0, 0.2)))
LOADABLE = {"a": LoadableModel(2.0, a_memory(1_000), COSTS), "b": LoadableModel(3.0, a_memory(500), SLOW)}
FLEET = [Instance("w0", a_memory(1_000), engine=COSTS, model="a", loadable=LOADABLE)]


def an_arrival(id: str, model: str, at: float = 0.0, total: int = 10) -> Arrival:
    return Arrival(a_request(id, at, predicted=total, model=model), total)


def changes(trace: Trace) -> list[tuple[str, float, float]]:
    return [(one.model, round(one.began_at, 6), round(one.ended_at, 6)) for one in trace.changes]


def test_a_change_waits_for_the_rows_that_end_in_time_and_takes_its_seconds() -> None:
    one, other = an_arrival("one", "a"), an_arrival("other", "b")
    script = [
        (0.0, Assignment("w0", (one.request,), joins=True)),
        (0.5, Assignment("w0", (), loads="b")),
        (4.01, Assignment("w0", (other.request,), joins=True)),
    ]
    policy = Scripted("continuous", script)
    trace = simulate(policy, [one, other], FLEET, COSTS, seed=0)
    # prefill 0.01 s and ten iterations of 0.1 s; from 1.01 s on the model is loaded, for 3 s
    assert changes(trace) == [("b", 1.01, 4.01)]
    # prefill 0.01 s and ten iterations of 0.2 s
    assert finished(trace) == {"one": 1.01, "other": 6.02}
    seen = {at: (worker.model, worker.changing) for at, (worker,) in policy.offered}
    assert (seen[0.0], seen[1.01], seen[4.01]) == (("a", False), ("b", True), ("b", False))
    assert trace.busy_s["w0"] == pytest.approx(1.01 + 2.01)


def test_rows_that_outlast_the_seconds_of_the_change_come_back_with_their_tokens() -> None:
    long = an_arrival("long", "a", total=100)
    script = [(0.0, Assignment("w0", (long.request,), joins=True)), (0.0, Assignment("w0", (), loads="b"))]
    policy = Scripted("continuous", script)
    trace = simulate(policy, [long], FLEET, COSTS, seed=0)
    # 3 s after the order the row has 29 tokens, and the 30th is thrown away
    assert [(at, request.id, request.generated) for at, request in policy.came[1:]] == [(3.0, "long", 29)]
    assert changes(trace) == [("b", 3.0, 6.0)]


def test_rows_that_wait_for_memory_come_back_at_a_change() -> None:
    first, second = an_arrival("first", "a", total=15), an_arrival("second", "a", total=15)
    loadable = {name: replace(one, change_s=0.2) for name, one in LOADABLE.items()}
    fleet = [replace(FLEET[0], memory=a_memory(40), loadable=loadable)]
    both = Assignment("w0", (first.request, second.request), joins=True)
    policy = Scripted("continuous", [(0.0, both), (1.1, Assignment("w0", (), loads="b"))])
    simulate(policy, [first, second], fleet, COSTS, seed=0)
    # two rows of 10 + 10 tokens fill the memory, and the second waits; at 1.3 s the first has two more tokens
    assert [(at, request.id, request.generated) for at, request in policy.came[2:]] == [
        (1.3, "first", 12),
        (1.3, "second", 10),
    ]


def test_a_batch_that_runs_to_completion_ends_before_the_change() -> None:
    one = an_arrival("one", "a", total=50)
    script = [(0.0, Assignment("w0", (one.request,))), (0.0, Assignment("w0", (), loads="b"))]
    trace = simulate(Scripted("batch", script), [one], FLEET, COSTS, seed=0)
    assert finished(trace) == {"one": 5.01}
    assert changes(trace) == [("b", 5.01, 8.01)]


def test_a_request_too_large_for_its_own_model_fails_though_another_model_would_hold_it() -> None:
    large = Arrival(a_request("large", length=600, predicted=10, model="b"), 10)
    trace = simulate(Scripted("continuous", []), [large], FLEET, COSTS, seed=0)
    assert list(trace.failed) == ["large"]
