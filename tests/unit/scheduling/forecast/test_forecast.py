"""What a forecast says is what the simulator then does, as far as lengths are known."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import ServingCurves
from scheduling.forecast.forecast import MOST_PLAYED, Forecast, PresentWork, expected_of_rows
from scheduling.forecast.forecast_inputs import copy_of
from scheduling.policy import Assignment, Policy, RunningRow
from scheduling.request import Request, RowLength
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, StartedBatch, simulate
from tests.unit.scheduling.scheduling_builders import (
    FLAT,
    SLOPED,
    a_memory,
    a_paged_worker,
    a_request,
    a_worker,
    examples,
)

NOW = 1.7e9  # a planner's clock counts from 1970
SETTINGS = PolicySettings(128, 256, None, None)
NONE: list[Request] = []
IN_BATCHES = sorted(name for name in POLICIES if make_policy(name, SETTINGS).mode != "continuous")


def waiting_requests(tokens: Sequence[int], upper: int = 1) -> list[Request]:
    return [
        a_request(f"r{n:03}", at=NOW - 1 + n / 1000, predicted=one, upper=upper * one, limit=256)
        for n, one in enumerate(tokens)
    ]


def policy_with(name: str, requests: Sequence[Request]) -> Policy:
    policy = make_policy(name, SETTINGS)
    for request in requests:
        policy.add(request, NOW)
    return policy


def forecast(
    policy: Policy, work: Sequence[PresentWork], waiting: Sequence[Request] = (), coming: Sequence[Request] = ()
) -> Forecast:
    made = Forecast(copy_of(policy), work, waiting, iter(coming), NOW)
    assert made.advance(lambda: True)
    return made


def idle(costs: ServingCurves = SLOPED, tokens: int = 2_000) -> list[PresentWork]:
    return [PresentWork(a_worker("w", tokens, costs))]


@pytest.mark.parametrize("name", IN_BATCHES)
def test_with_exact_predictions_each_answer_comes_when_it_was_expected(name: str) -> None:
    requests = waiting_requests([5, 60, 20, 100, 33, 7, 90, 41] * 4)
    policy = policy_with(name, requests)
    expected = forecast(policy, idle(), requests).expected()
    assert len(policy) == len(requests)  # the original was not played with
    trace = simulate(
        make_policy(name, SETTINGS),
        [Arrival(request, request.predicted) for request in requests],
        [Instance("w", a_memory(2_000), joins_at=NOW)],
        EngineCosts(SLOPED),
        seed=0,
    )
    for request in requests:
        answer, forecast_of_it = trace.answers[request.id], expected[request.id]
        assert forecast_of_it.seconds == pytest.approx(answer.finished_at - NOW, abs=0.001)
        assert forecast_of_it.starts_in_s == pytest.approx(answer.started_at - NOW, abs=0.001)


def test_running_rows_go_on_where_they_are_and_what_waits_follows() -> None:
    rows = [RunningRow(a_request("a", predicted=100, limit=256), 60, NOW - 6)]
    waits = [a_request("b", at=NOW, predicted=10, limit=256, length=80)]  # of 100 tokens of memory
    work = [PresentWork(a_worker("w", 200, rows=rows, busy=True))]
    expected = forecast(policy_with("vs", waits), work, waits).expected()
    # 40 of 100 tokens are left, 100 ms each; then 80 ms and 10 tokens for the next
    assert expected["a"].stage == "running"
    assert expected["a"].seconds == pytest.approx(4.0)
    assert expected["b"].seconds == pytest.approx(5.08)


@pytest.mark.parametrize("name", ["vs", "magnus"])
def test_a_worker_that_loads_its_model_serves_what_waits_once_it_has_it(name: str) -> None:
    requests = waiting_requests([5, 60, 20])
    loaded, loads = (
        forecast(policy_with(name, requests), [replace(one, loads_s=seconds) for one in idle()], requests).expected()
        for seconds in (0.0, 7.0)
    )
    for request in requests:
        assert loads[request.id].seconds == pytest.approx(loaded[request.id].seconds + 7)


def test_rows_of_a_continuous_batch_are_expected_by_their_progress_alone() -> None:
    rows = [RunningRow(a_request("a", predicted=100, upper=150, limit=256), 60, NOW - 6)]
    ((name, answer),) = expected_of_rows(PresentWork(a_worker("w", rows=rows)))
    assert (name, answer.stage) == ("a", "running")
    assert 4.0 <= answer.seconds < 6.0
    assert not list(expected_of_rows(PresentWork(a_worker("w"))))
    sloped = PresentWork(a_worker("w", rows=[*rows, RunningRow(a_request("b", length=400), 0, NOW)]), step_costs=SLOPED)
    paged = PresentWork(a_paged_worker(rows=sloped.worker.rows), step_costs=SLOPED)
    assert dict(expected_of_rows(sloped))["a"].seconds > dict(expected_of_rows(paged))["a"].seconds
    dear = PresentWork(sloped.worker, step_costs=FLAT)
    assert dict(expected_of_rows(dear))["a"].seconds == answer.seconds


def test_a_row_predicted_again_is_expected_by_that_prediction() -> None:
    row = RunningRow(RowLength(60, 90, 90).of(a_request("a", predicted=100, limit=256)), 70, NOW)
    ((_, answer),) = expected_of_rows(PresentWork(a_worker("w", rows=[row])))
    assert answer.seconds == pytest.approx(2.0)  # 20 more tokens


def test_a_batch_that_runs_ends_with_its_longest_row_and_the_next_one_follows() -> None:
    first = Assignment("w", (a_request("a", predicted=30, limit=99), a_request("b", predicted=50, limit=99)))
    second = Assignment("w", (a_request("c", predicted=10, limit=99),))
    batches = (StartedBatch(first, NOW - 2.02), StartedBatch(second, None))
    work = [PresentWork(a_worker("w", busy=True), batches, progress=20)]
    expected = forecast(make_policy("magnus", SETTINGS), work).expected()
    # 2 prompts of 10 tokens take 0.02 s, 50 tokens 5 s, and 2.02 s have passed; then 0.01 s and 1 s for the next
    assert expected["a"].seconds == expected["b"].seconds == pytest.approx(3.0)
    assert expected["c"].seconds == pytest.approx(4.01)
    assert {answer.stage for answer in expected.values()} == {"running"}


def test_the_engines_own_costs_count_where_a_policy_knows_only_whole_batches() -> None:
    batch = StartedBatch(Assignment("w", (a_request("a", predicted=40, limit=256),)), NOW)
    nothing_known = ServingCurves((0.0,) * 4, (0.0,) * 4)
    work = PresentWork(a_worker("w", costs=nothing_known, busy=True), (batch,))
    assert forecast(make_policy("magnus", SETTINGS), [work]).expected()["a"].seconds == pytest.approx(0.04)
    with_steps = PresentWork(work.worker, (batch,), step_costs=FLAT)
    assert forecast(make_policy("magnus", SETTINGS), [with_steps]).expected()["a"].seconds == pytest.approx(4.01)


def test_what_waits_behind_the_part_that_is_played_comes_at_the_rate_of_that_part() -> None:
    requests = waiting_requests([10] * (2 * MOST_PLAYED))
    expected = forecast(policy_with("vs", requests), idle(FLAT), requests).expected()
    seconds = [expected[request.id].seconds for request in requests]
    assert seconds == sorted(seconds)
    # five rows of 10 tokens a batch, each 1.05 s: 400 requests take 84 s
    assert seconds[-1] == pytest.approx(84, rel=0.1)


def test_requests_that_are_expected_to_come_delay_those_that_are_here() -> None:
    waits = [a_request("a", at=NOW, predicted=200, limit=256)]
    coming = [a_request(f"c{n}", at=NOW + 0.5 * n, predicted=50, limit=256) for n in range(20)]
    alone, beside = (forecast(policy_with("vs", waits), idle(), waits, some) for some in (NONE, coming))
    assert beside.expected()["a"].seconds > alone.expected()["a"].seconds
    assert set(beside.expected()) == {"a"}


def test_it_is_played_in_pieces_of_any_size() -> None:
    requests = waiting_requests([5, 60, 20, 100, 33] * 3)
    whole = forecast(policy_with("magnus", requests), idle(), requests).expected()
    pieces = Forecast(policy_with("magnus", requests), idle(), requests, iter(NONE), NOW)
    assert not pieces.advance(lambda: False)
    turns: Iterator[bool] = iter([True, False] * 1000)
    while not pieces.advance(lambda: next(turns)):
        pass
    assert pieces.expected() == whole


def test_uncertain_lengths_spread_a_forecast_and_other_numbers_draw_other_ones() -> None:
    sure, unsure = waiting_requests([50] * 8), waiting_requests([50] * 8, upper=4)
    certain = forecast(policy_with("vs", sure), idle(), sure).expected()
    made = [Forecast(policy_with("vs", unsure), idle(), unsure, iter(NONE), NOW, number=number) for number in range(4)]
    assert all(one.advance(lambda: True) for one in made)
    assert made[0].expected()["r000"].spread > certain["r000"].spread
    assert len({round(one.expected()["r000"].seconds, 3) for one in made}) > 1


def test_a_request_that_has_outlived_its_prediction_is_still_expected_to_end() -> None:
    rows = [RunningRow(a_request("a", predicted=10, upper=20, limit=1000), 300, NOW - 30)]
    assert 1 <= dict(expected_of_rows(PresentWork(a_worker("w", rows=rows))))["a"].seconds < 70


@pytest.mark.parametrize("name", sorted(POLICIES))
@examples(5)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=30))
def test_a_copy_of_any_policy_decides_as_the_original(name: str, tokens: list[int]) -> None:
    policy = policy_with(name, waiting_requests(tokens))
    policy.assign([a_worker("w", 500)], NOW)  # so that it has a fleet to remember
    copy = copy_of(policy)
    again = [a_worker("w", 500), a_worker("other", 900)]
    assert copy.assign(again, NOW + 60) == policy.assign(again, NOW + 60)
    assert len(copy) == len(policy)
