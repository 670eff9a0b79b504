"""Workers change their model when it pays, seldom enough, and for every model in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import ServingCurves
from scheduling.policy import Worker
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request
from scheduling.sharing.isolation import IsolatingPolicy
from scheduling.sharing.model_changes import LEAST_STAY, LONG_STAY, PATIENCE, ModelChanges
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance, LoadableModel
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace
from scheduling.worker_facts import Loadable
from tests.unit.scheduling.scheduling_builders import (
    FLAT,
    SLOPED,
    a_line,
    a_memory,
    a_request,
    a_row,
    a_worker,
    add_all,
    examples,
)

CHANGE_S = 10.0
MODELS = ("a", "b", "c")
LOADABLE = {model: Loadable(CHANGE_S, a_memory(10_000), FLAT) for model in MODELS}


def changing_policy(name: str = "fusion") -> ModelChanges:
    return ModelChanges(partial(make_policy, name, PolicySettings(max_prompt_tokens=100, max_output_tokens=60)))


def a_changer(name: str = "w", model: str = "a", rows: int = 0) -> Worker:
    """A worker that can load three models; its rows have ten seconds to go."""
    running = [a_row(f"{name}{number}", predicted=101) for number in range(rows)]
    return replace(a_worker(name, rows=running), model=model, loadable=LOADABLE)


def some(count: int, model: str, at: float = 0.0) -> list[Request]:
    return [a_request(f"{model}{number}", at, predicted=100, model=model) for number in range(count)]


def loads(policy: ModelChanges, workers: Sequence[Worker], now: float) -> dict[str, str]:
    """The workers that change, each with its next model."""
    return {one.worker: one.loads for one in policy.assign(workers, now) if one.loads is not None}


# Ten rows end within 10 s, one a second. The other requests take 10 s, after the 10 s for which the rows may run on and
# the 10 s of the change: 29 in 30 s are fewer than one a second.
@pytest.mark.parametrize(("waiting", "change"), [(29, {}), (33, {"w": "b"})])
def test_many_waiting_requests_pay_for_a_change_and_few_do_not(waiting: int, change: dict[str, str]) -> None:
    policy = changing_policy()
    worker = a_changer(rows=10)
    policy.assign([worker], 0.0)
    add_all(policy, some(waiting, "b", at=LEAST_STAY * CHANGE_S))
    assert loads(policy, [worker], LEAST_STAY * CHANGE_S) == change


def test_the_requests_that_wait_for_a_model_can_be_listed() -> None:
    policy = changing_policy()
    add_all(policy, [a_request("one", 0.0, model="a"), a_request("other", 0.0, model="b")])
    assert [one.request.id for one in policy.waiting_for("a")] == ["one"]
    assert list(policy.waiting_for("c")) == []


def test_a_worker_stays_for_a_while_with_a_model_that_has_work() -> None:
    policy = changing_policy()
    add_all(policy, some(60, "b"))
    assert loads(policy, [a_changer(rows=1)], 0.0) == {}
    assert policy.wake_at(0.0) == LEAST_STAY * CHANGE_S
    policy.assign([], 1.0)
    assert policy.wake_at(1.0) is None  # its worker is gone
    assert loads(policy, [a_changer(rows=1)], LEAST_STAY * CHANGE_S) == {"w": "b"}


def test_an_idle_worker_changes_at_once_and_only_one_of_several() -> None:
    policy = changing_policy()
    add_all(policy, some(1, "b"))
    assert loads(policy, [a_changer("w1"), a_changer("w2")], 0.0) == {"w1": "b"}
    changing = replace(a_changer("w1", "b"), changing=True)
    assert policy.assign([changing, a_changer("w2")], 1.0) == []


# One of two models, for which there are as many workers; b would be faster on the second one by more than a change.
TEN_TIMES_FLAT = ServingCurves(prefill=(0.001, 0.0, 0.0, 0.0), decode=(0.0, 0.0, 0.0, 0.01))
FASTER = {"a": LOADABLE["a"], "b": Loadable(CHANGE_S, a_memory(10_000), TEN_TIMES_FLAT)}


@pytest.mark.parametrize("others", [0, 1])
def test_a_single_request_changes_one_worker_however_fast_another_one_might_be(others: int) -> None:
    policy = changing_policy()
    add_all(policy, [a_request("b0", predicted=900, limit=1000, model="b")])
    workers = [a_changer("w1"), *(replace(a_changer(f"v{number}"), loadable=FASTER) for number in range(1 + others))]
    assert loads(policy, workers, 0.0) == {"w1": "b"}
    changing = replace(a_changer("w1", "b"), changing=True)
    assert loads(policy, [changing, *workers[1:]], 1.0) == {}


def test_the_only_worker_of_a_model_helps_others_once_nobody_has_asked_for_it_for_long() -> None:
    policy, pair = changing_policy(), {model: LOADABLE[model] for model in "ab"}
    workers = [replace(a_changer("w1", "a"), loadable=pair), replace(a_changer("w2", "b", rows=1), loadable=pair)]
    policy.assign([replace(workers[0], rows=(a_row("last"),)), workers[1]], 5.0)
    kept_until = 5.0 + PATIENCE * CHANGE_S
    for number in range(900):
        policy.add(a_request(f"b{number}", 6.0, 300, 30, model="b"), 6.0)
    assert loads(policy, workers, 6.0) == {}
    assert policy.wake_at(6.0) == kept_until
    assert loads(policy, workers, kept_until - 1) == {}
    assert loads(policy, workers, kept_until) == {"w1": "b"}


@examples(200)
@given(
    st.lists(st.tuples(st.sampled_from(MODELS), st.integers(0, 3), st.booleans()), min_size=3, max_size=5),
    st.fixed_dictionaries({model: st.sampled_from([0, 1, 2, 5, 200]) for model in MODELS}),
    st.floats(0, PATIENCE * CHANGE_S, exclude_max=True),
)
def test_no_model_loses_its_only_worker_to_one_that_has_a_worker(
    described: list[tuple[str, int, bool]], waiting: dict[str, int], now: float
) -> None:
    policy, small = changing_policy(), a_memory(440)  # four rows
    loadable = {model: Loadable(CHANGE_S, small, FLAT) for model in MODELS}
    workers = [
        replace(a_changer(f"w{number}", model, rows), memory=small, loadable=loadable, changing=changing)
        for number, (model, rows, changing) in enumerate(described)
    ]
    policy.assign(workers, 0.0)
    for model, count in waiting.items():
        add_all(policy, some(count, model))
    has = {worker.name: worker.model for worker in workers}
    running = {model: sum(len(worker.rows) for worker in workers if worker.model == model) for model in MODELS}
    for name, model in loads(policy, workers, now).items():
        serving = list(has.values()).count(model)
        assert not serving or list(has.values()).count(has[name]) > 1
        assert serving < waiting[model] + running[model]
        has[name] = model


def test_the_worker_with_the_least_work_changes() -> None:
    policy = changing_policy()
    workers = [a_changer("w1", "a", rows=9), a_changer("w2", "c", rows=1)]
    policy.assign(workers, 0.0)
    add_all(policy, some(60, "b"))
    assert loads(policy, workers, LEAST_STAY * CHANGE_S) == {"w2": "b"}


def test_requests_go_to_workers_that_have_their_model() -> None:
    policy = changing_policy("vs")
    add_all(policy, [*some(1, "a"), *some(1, "b")])
    assert [batch.requests[0].model for batch in policy.waiting(0.0)] == ["a", "b"]
    assigned = policy.assign([a_changer("w1", "a"), a_changer("w2", "b")], 0.0)
    assert {(one.worker, one.requests[0].model) for one in assigned} == {("w1", "a"), ("w2", "b")}


def test_a_batch_that_runs_to_completion_ends_before_its_worker_changes() -> None:
    policy = changing_policy("vs")
    running = replace(a_changer(), queued=1, busy_s=1.0)
    policy.assign([running], 0.0)
    add_all(policy, [*some(60, "b"), *some(1, "a")])
    assert policy.assign([running], LEAST_STAY * CHANGE_S) == []
    (change,) = policy.assign([a_changer()], LEAST_STAY * CHANGE_S + 1)
    assert (change.loads, change.requests) == ("b", ())


def test_a_model_whose_request_waits_too_long_gets_a_worker_whatever_the_rates() -> None:
    policy = changing_policy()
    add_all(policy, [*some(1, "b"), *some(1, "c")])
    policy.assign([a_changer("w", "b", rows=50)], 0.0)  # b is served, and then a for long
    busy = a_changer(rows=50)
    assert loads(policy, [busy], 1.0) == {}
    assert loads(policy, [busy], PATIENCE * CHANGE_S - 1) == {}
    add_all(policy, some(1, "b", at=2.0))
    assert loads(policy, [busy], PATIENCE * CHANGE_S + 2) == {"w": "c"}  # which was served least recently


def test_background_requests_wait_until_their_worker_has_nothing_else_to_serve() -> None:
    policy = changing_policy()
    add_all(policy, [a_line(f"line{number}", model="b") for number in range(60)])
    busy, parked = a_changer(rows=1), replace(a_changer(), rows=(a_row("line", tier="flex"),))
    policy.assign([busy], 0.0)
    assert loads(policy, [busy], PATIENCE * CHANGE_S + 1) == {}
    assert loads(policy, [parked], PATIENCE * CHANGE_S + 2) == {"w": "b"}


def test_a_worker_that_can_load_no_other_model_keeps_its_own() -> None:
    policy = changing_policy()
    add_all(policy, some(60, "b"))
    assert policy.assign([replace(a_worker(), model="a")], 0.0) == []


def test_suspects_and_a_batch_that_did_not_fit_wait_for_a_worker_of_their_model() -> None:
    policy = changing_policy("vs")
    policy.isolate(some(2, "b"))
    add_all(policy, some(2, "a"))
    (batch,) = policy.assign([a_changer("w1")], 0.0)
    policy.out_of_memory(batch, 1.0)
    assert len(policy) == 4
    assigned = policy.assign([a_changer("w1"), a_changer("w2", "b")], 2.0)
    assert {(one.worker, one.requests[0].model) for one in assigned} == {("w1", "a"), ("w2", "b")}


def test_weights_and_trust_reach_the_policies_of_present_and_of_later_models() -> None:
    told: list[object] = []

    class Told(IsolatingPolicy):
        def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
            told.append(rank_correlation.tau)

        def set_weights(self, weights: Mapping[str, float]) -> None:
            told.append(weights)

    policy = ModelChanges(lambda: Told(make_policy("vs", PolicySettings(100, 60))))
    add_all(policy, some(1, "a"))
    for _ in range(2):  # what is known already is not told again
        policy.set_rank_correlation(RankCorrelation(0.5))
        policy.set_weights({"tenant": 2.0})
    add_all(policy, some(1, "b"))
    assert told == [None, {}, 0.5, {"tenant": 2.0}, 0.5, {"tenant": 2.0}]


def test_a_withdrawn_request_calls_for_no_change() -> None:
    policy = changing_policy()
    add_all(policy, some(1, "b"))
    assert policy.discard("b0")
    assert not policy.discard("b0")
    assert loads(policy, [a_changer()], 1.0) == {}
    assert len(policy) == 0


def a_fleet(workers: int, change_s: float) -> list[Instance]:
    """Workers that can load every model; each holds ten rows of the longest request."""
    engine, memory = EngineCosts(SLOPED), a_memory(1_600)
    loadable = {model: LoadableModel(change_s, memory, engine) for model in MODELS}
    return [
        Instance(f"w{number}", memory, engine=engine, model=MODELS[number], loadable=loadable)
        for number in range(workers)
    ]


@st.composite
def workloads(draw: st.DrawFn, models: str = "aaaabbc") -> list[Arrival]:
    drawn = draw(
        st.lists(
            st.tuples(st.integers(0, 60), st.sampled_from(models), st.integers(1, 100), st.integers(1, 60)),
            min_size=1,
            max_size=40,
        )
    )
    return [
        Arrival(a_request(f"r{number}", float(at), length, total, limit=60, model=model), total)
        for number, (at, model, length, total) in enumerate(drawn)
    ]


def run(name: str, arrivals: Sequence[Arrival], workers: int, change_s: float) -> Trace:
    return simulate(changing_policy(name), arrivals, a_fleet(workers, change_s), EngineCosts(SLOPED), seed=0)


@pytest.mark.parametrize("name", sorted(POLICIES))
@examples(4)
@given(workloads(), st.integers(1, 2), st.sampled_from([0.5, 5.0]))
def test_every_request_is_answered_exactly_once_by_its_own_model(
    name: str, arrivals: list[Arrival], workers: int, change_s: float
) -> None:
    trace = run(name, arrivals, workers, change_s)
    models = {one.request.id: one.request.model for one in arrivals}
    assert {one.id: one.model for one in trace.answers.values()} == models
    assert trace.tokens.valid == sum(one.generation_length for one in arrivals)


@pytest.mark.parametrize("name", sorted(POLICIES))
@examples(4)
@given(st.lists(st.tuples(st.sampled_from("aaaaaaaabc"), st.integers(0, 8)), min_size=60, max_size=80))
def test_as_many_workers_as_models_change_no_more_once_each_model_has_one(
    name: str, arriving: list[tuple[str, int]]
) -> None:
    arrivals = [
        Arrival(a_request(f"r{number}", float(at), 50, 55, limit=60, model=model), 55)
        for number, (model, at) in enumerate(arriving)
    ]
    trace = run(name, arrivals, len(MODELS), change_s=3.0)
    assert [change for change in trace.changes if change.began_at < PATIENCE * 3.0] == []


@examples(8)
@given(st.lists(st.sampled_from("aaabbc"), min_size=30, max_size=100), st.sampled_from([0.5, 2.0, 8.0]))
def test_in_overload_the_share_of_time_in_changes_is_bounded(models: list[str], change_s: float) -> None:
    arrivals = [
        Arrival(a_request(f"r{number}", 0.0, 50, 20 + number % 40, limit=60, model=model), 20 + number % 40)
        for number, model in enumerate(models)
    ]
    trace = run("ccb", arrivals, 1, change_s)
    changing_s = sum(change.ended_at - change.began_at for change in trace.changes)
    for_want_of_work = change_s * len(MODELS)  # each model is empty at most once
    assert changing_s <= trace.makespan_s / (1 + LEAST_STAY) + for_want_of_work


@examples(3)
@given(st.sampled_from([0.5, 1.0]), st.integers(0, 20))
def test_a_rare_model_is_served_in_bounded_time_however_much_waits_for_others(change_s: float, at: int) -> None:
    arrivals = [
        Arrival(a_request(f"r{number}", 0.0, 50, 55, limit=60, model="ab"[number % 2]), 55) for number in range(150)
    ]
    arrivals.append(Arrival(a_request("rare", float(at), 50, 30, limit=60, model="c"), 30))
    trace = run("ccb", arrivals, 1, change_s)
    # one other model may be overdue before it; each stays, lets its rows run on for a change, and takes a change
    turns_s = 2 * (LONG_STAY + 2) * change_s
    step_s = 5.0  # a decision is made when something ends; a row takes 4 s
    assert trace.answers["rare"].started_at - at <= PATIENCE * change_s + turns_s + step_s
