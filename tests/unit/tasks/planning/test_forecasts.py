"""What the planner makes of forecasts: how much time they get, what they publish, what they learn from."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest

from models.planning.planner_requests import QueuedRequest
from scheduling.forecast.expectations import FEWEST, Stage
from scheduling.forecast.forecast import PresentWork
from scheduling.policy import RunningRow, Worker
from scheduling.request import Request
from scheduling.sharing.background.deadlines import Work
from scheduling.sharing.model_queue import WaitsBehind
from scheduling.sharing.policy_factory import PolicySettings, favour_of
from tasks.planning.forecasts import FRESH_S, SAVED_S, SHARE, Forecasts, ModelQueueView
from tasks.planning.policies_by_model import PoliciesByModel
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_request

NOW = 1.7e9
Ends = dict[str, float | None]


def no_ends(request_ids: Sequence[str]) -> Ends:
    return {}


def queued(request: Request) -> QueuedRequest:
    return QueuedRequest(replace(request, model="small"))


def worker(*rows: RunningRow) -> Worker:
    return Worker("w", a_memory(2_000), FLAT, rows, model="small")


def planner_with(requests: Sequence[Request], policy: str = "magnus") -> PoliciesByModel:
    policies = PoliciesByModel(policy, PolicySettings())
    policies.feed([queued(request) for request in requests], NOW)
    return policies


def ticking(step_s: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step_s


def a_clock(step_s: float) -> Any:
    """A clock that moves on by `step_s` at each look."""
    instants = ticking(step_s)
    return lambda: next(instants)


def view(names: Sequence[str], waiting: Sequence[Request], policy: str = "magnus") -> ModelQueueView:
    behind = [WaitsBehind(one, Work()) for one in waiting]
    return ModelQueueView(names, behind, joins=policy == "fusion", favour=favour_of(policy, PolicySettings()))


@pytest.mark.parametrize("policy", ["fusion", "magnus"])
@pytest.mark.parametrize("errors", [0, FEWEST])
def test_running_and_waiting_requests_are_published_with_positions_etas_and_intervals_that_rest_on_errors(
    errors: int, policy: str
) -> None:
    requests = [a_request(f"r{n}", at=NOW - 1, predicted=10, upper=20) for n in range(3)]
    forecasts, policies = Forecasts(a_clock(0.0)), planner_with(requests, policy)
    for number in range(errors):
        for stage in get_args(Stage):
            forecasts._state_of("small").calibration.learn(stage, 1.0, 0.5, 1 + number / 40, NOW)
    forecasts.add_arrivals([queued(request) for request in requests], NOW)
    row = RunningRow(a_request("runs", predicted=50, upper=90), 10, NOW - 1)
    forecasts.begin(policies, lambda: {"small": [PresentWork(worker(row))]}, NOW)
    forecasts.advance(no_ends, NOW)
    published = forecasts.described(
        {"small": [PresentWork(worker(row))]}, {"small": view(["r0", "r1", "r2"], requests, policy)}, NOW
    ).of_models["small"]
    assert published.at == NOW
    assert published.order is not None
    places = {name: job[0] for name, job in published.jobs.items()}
    assert places == {"runs": None, "r0": 1, "r1": 2, "r2": 3}
    for _, eta_s, low_s, high_s in published.jobs.values():
        assert eta_s > 0
        assert (low_s is None) is (high_s is None) is (not errors)
        assert low_s is None or high_s is None or 0 < low_s < eta_s < high_s
    assert len(policies) == 3  # the policy that serves was not played with


def test_forecasts_take_no_more_than_their_share_of_the_time() -> None:
    requests = [a_request(f"r{n}", at=NOW - 1, predicted=10 + n) for n in range(60)]
    forecasts, policies = Forecasts(a_clock(0.001)), planner_with(requests)
    now = NOW
    for _ in range(2000):
        now += 0.05
        forecasts.begin(policies, lambda: {"small": [PresentWork(worker())]}, now)
        forecasts.advance(no_ends, now)
    assert forecasts.described({}, {}, now).of_models
    assert (
        forecasts.described({}, {}, now).spent_s <= SAVED_S + SHARE * (now - NOW) + 0.1
    )  # one step more than what was left


def test_an_idle_hour_is_not_spent_on_forecasts_in_the_busy_minutes_after_it() -> None:
    requests = [a_request(f"r{n}", at=NOW - 1, predicted=10 + n) for n in range(60)]
    forecasts, policies = Forecasts(a_clock(0.001)), planner_with([])
    policies.policy_for("small")
    forecasts.begin(policies, lambda: {"small": [PresentWork(worker())]}, NOW)
    busy_at = NOW + 3600.0
    for turn in range(200):
        now = busy_at + 0.05 * turn
        forecasts.begin(planner_with(requests), lambda: {"small": [PresentWork(worker())]}, now)
        forecasts.advance(no_ends, now)
    assert 0 < forecasts.described({}, {}, now).spent_s <= SAVED_S + SHARE * (now - busy_at) + 0.1


def test_answers_that_came_teach_how_far_forecasts_err() -> None:
    forecasts = Forecasts(a_clock(0.0))
    policies = planner_with([])
    policies.policy_for("small")
    ends: Ends = {}

    def ends_of(request_ids: Sequence[str]) -> Ends:
        return {one: ends[one] for one in request_ids if one in ends}

    told = []
    for turn in range(FEWEST + 4):
        now = NOW + 10 * turn
        name = f"runs{turn}"
        row = RunningRow(a_request(name, predicted=20), 10, now)  # one second is left
        work = {"small": [PresentWork(worker(row))]}
        forecasts.begin(policies, partial(dict, work), now)
        forecasts.advance(ends_of, now)
        told.append(forecasts.described(work, {}, now).of_models["small"].jobs[name][1])
        ends[name] = None if turn == 0 else now + 3.0  # it took three; the first one was cancelled
    assert told[0] == pytest.approx(1.0)
    assert told[-1] == pytest.approx(3.0)


def test_a_running_row_is_expected_by_its_progress_whenever_a_snapshot_is_written() -> None:
    forecasts, request = Forecasts(a_clock(0.0)), a_request("runs", predicted=50)
    for generated, left_s in ((10, 4.0), (40, 1.0), (49, 0.1)):
        now = NOW + generated / 10
        row = RunningRow(request, generated, NOW)
        published = forecasts.described({"small": [PresentWork(worker(row))]}, {}, now).of_models["small"]
        assert published.at + published.jobs["runs"][1] == pytest.approx(now + left_s)


def test_an_old_forecast_tells_when_a_place_in_the_queue_has_its_turn_whoever_has_it_by_now() -> None:
    requests = [a_request(f"r{n}", at=NOW - 1, predicted=10, upper=20) for n in range(3)]
    forecasts, policies = Forecasts(a_clock(0.0)), planner_with(requests)
    work = {"small": [PresentWork(worker())]}
    forecasts.begin(policies, lambda: work, NOW)
    forecasts.advance(no_ends, NOW)

    def told(order: list[str], now: float) -> dict[str, list[Any]]:
        jobs = forecasts.described(work, {"small": view(order, [])}, now).of_models["small"].jobs
        return {name: list(job[:2]) for name, job in jobs.items()}

    fresh = told(["r0", "r1", "r2"], NOW)
    assert told(["r1", "r0"], NOW + FRESH_S)["r1"] == [1, pytest.approx(fresh["r1"][1] - FRESH_S)]
    old = told(["new", "r2", "r1", "r0"], NOW + FRESH_S + 1)
    assert [old[name] for name in ("new", "r2", "r1")] == [fresh[name] for name in ("r0", "r1", "r2")]
    assert old["r0"] == [4, pytest.approx(fresh["r2"][1] * 4 / 3, abs=0.001)]
    waiting = [a_request(f"w{n}") for n in range(9)]
    behind = forecasts.described(work, {"small": view(["r0"], waiting)}, NOW).of_models["small"].behind
    assert behind is not None
    assert behind.seconds == pytest.approx(fresh["r2"][1] * 5 / 3, abs=0.001)  # the middle of places 2 to 9


def test_where_rows_join_a_waiting_request_is_expected_by_its_own_place_and_the_others_by_their_middle() -> None:
    requests = [a_request(f"r{n}", at=NOW - 9 + n, predicted=100) for n in range(8)]
    short = a_request("short", at=NOW, predicted=1)
    forecasts, work = Forecasts(a_clock(0.0)), {"small": [PresentWork(worker())]}
    views = {"small": view(["short", "r0", "r7"], [*requests, short], "fusion")}
    published = forecasts.described(work, views, NOW).of_models["small"]
    told = {name: job.seconds for name, job in published.jobs.items()}
    assert told["short"] < told["r0"] < told["r7"]
    assert published.behind is not None
    assert told["r0"] < published.behind.seconds < told["r7"]


def test_what_waits_without_an_answer_makes_forecasts_later() -> None:
    forecasts, work = Forecasts(a_clock(0.0)), {"small": [PresentWork(worker())]}
    waits = [a_request(f"w{n}", at=NOW, predicted=100) for n in range(FEWEST)]
    views = {"small": view([one.id for one in waits], waits, "fusion")}
    calibration = forecasts._state_of("small").calibration
    before = forecasts.described(work, views, NOW).of_models["small"].jobs["w0"].seconds
    for number in range(FEWEST):
        calibration.learn("waiting", before, 0.5, before * (1 + number / 100), NOW)
    forecasts.advance(no_ends, NOW)
    known = forecasts.described(work, views, NOW).of_models["small"].jobs["w0"]
    forecasts.advance(no_ends, NOW + 20 * before)
    late = forecasts.described(work, views, NOW).of_models["small"].jobs["w0"]
    assert known.high_s is not None
    assert late.high_s is not None
    assert late.high_s - late.seconds > known.high_s - known.seconds
