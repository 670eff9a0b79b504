"""Forecasts beside the planner's decisions: one after the other, in pieces, in less than a twentieth of its time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import thread_time
from typing import Any

from models.planning.planner_requests import QueuedRequest
from scheduling.forecast.expected_arrivals import RecentArrivals
from scheduling.forecast.forecast import ExpectedAnswer, Forecast, PresentWork
from scheduling.forecast.interval_calibration import IntervalCalibration, Stage
from scheduling.forecast.policy_copy import copy_of
from scheduling.forecast.running_rows import expected_of_rows
from scheduling.policy import Policy

# Of the planner's time, in CPU seconds, since others may have the CPU meanwhile. With the snapshots' own fortieth it
# leaves nineteen twentieths for decisions. Not tuned.
SHARE = 0.03
AT_ONCE_S = 0.02  # in one step: a tenth of what a client notices, and more than most single decisions
FIRST_S = 0.2  # what a new planner may spend at once, so that ETAs are there within a second
EVERY_S = 0.5  # between two forecasts' beginnings: snapshots are no more frequent
MOST_S = 1.0  # of computing for one forecast; what is not played by then is expected at the rate of what was. Not tuned
MOST_WAITING = 1000  # requests at the front of the queue that a forecast names; of others a client learns less
# Forecasts of one request that are compared with its answer, each when it has waited this much longer than at the last.
# A long job would otherwise count as often as it was forecast. Not tuned.
MOST_JUDGED, LONGER = 3, 2.0
MOST_REMEMBERED = 4000  # requests with forecasts that have not come true yet

# When requests were answered, by id; None for one that failed or was cancelled; those that have not ended are left out.
EndsOf = Callable[[Sequence[str]], Mapping[str, float | None]]
WorkByModel = Mapping[str, Sequence[PresentWork]]


@dataclass(frozen=True, slots=True)
class _Made:
    """A forecast of one request, to be compared with its answer."""

    stage: Stage
    at: float
    expected_s: float
    spread: float


@dataclass(slots=True)
class _OfModel:
    """What is known of one model's requests; `published` is its part of the planner's snapshot."""

    arrivals: RecentArrivals = field(default_factory=RecentArrivals)
    calibration: IntervalCalibration = field(default_factory=IntervalCalibration)
    made: dict[str, list[_Made]] = field(default_factory=dict)
    running: dict[str, ExpectedAnswer] = field(default_factory=dict)  # the rows that run, as of the last snapshot
    published: dict[str, Any] | None = None
    begun: int = 0
    due_at: float = 0.0


@dataclass(slots=True)
class _InProgress:
    model: str
    forecast: Forecast
    played_s: float = 0.0


class Forecasts:
    """The forecasts of all models, one in progress at a time."""

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        self._models: dict[str, _OfModel] = {}
        self._in_progress: _InProgress | None = None
        self._spent_s = 0.0
        self._since: float | None = None

    def see(self, queued: Iterable[QueuedRequest], now: float) -> None:
        """Take note of requests that were handed to the policies."""
        for one in queued:
            self._of(one.model).arrivals.see(one.request, now)

    def begin(
        self,
        policies: Iterable[tuple[str, Policy]],
        work: Callable[[], WorkByModel],
        now: float,
    ) -> None:
        """If none is in progress and there is time, begin the forecast that is due for longest.

        What the policies have assigned must be in `work`: it waits no more.
        """
        self._since = now if self._since is None else self._since
        if self._in_progress is not None or self._left_s(now) <= 0:
            return
        due = [(of.due_at, model, policy) for model, policy in policies if (of := self._of(model)).due_at <= now]
        if not due:
            return
        began = self._clock()
        _, model, policy = min(due, key=lambda one: one[:2])
        of, of_model = self._of(model), work().get(model, ())
        of.due_at = now + EVERY_S
        busy = any(one.worker.rows or one.batches for one in of_model)
        if of_model and (busy or len(policy) or of.arrivals.rate(now)):
            of.begun += 1
            waiting = (request for batch in policy.waiting(now) for request in batch.requests)
            awaited = list(islice(waiting, MOST_WAITING))
            forecast = Forecast(copy_of(policy), of_model, awaited, of.arrivals.expected(now), now, of.begun)
            self._in_progress = _InProgress(model, forecast)
        elif not busy:
            of.published = None
        self._spent_s += self._clock() - began

    def advance(self, ends_of: EndsOf, now: float) -> None:
        """Play on for as long as the share of time allows; once a forecast is complete, learn from its predecessors."""
        playing, left_s = self._in_progress, self._left_s(now)
        if playing is None or left_s <= 0:
            return
        began = self._clock()
        complete = playing.forecast.advance(lambda: self._clock() - began < left_s)
        playing.played_s += self._clock() - began
        if complete or playing.played_s > MOST_S:
            self._in_progress = None
            self._conclude(ends_of, playing)
        self._spent_s += self._clock() - began

    @property
    def spent_s(self) -> float:
        """Seconds of CPU so far."""
        return self._spent_s

    def described(self, work: WorkByModel, now: float) -> dict[str, Any]:
        """The last forecast of each model, for the planner's snapshot, with the rows that run now."""
        began = self._clock()
        for model, of_model in work.items():
            of = self._of(model)
            of.running = {name: answer for one in of_model for name, answer in expected_of_rows(one)}
            if of.running or of.published:
                _add_running(of, now)
        self._spent_s += self._clock() - began
        return {model: of.published for model, of in self._models.items() if of.published is not None}

    def _of(self, model: str) -> _OfModel:
        return self._models.setdefault(model, _OfModel())

    def _left_s(self, now: float) -> float:
        """What may be spent in this step."""
        return min(AT_ONCE_S, FIRST_S + SHARE * (now - (self._since or now)) - self._spent_s)

    def _conclude(self, ends_of: EndsOf, playing: _InProgress) -> None:
        """Compare earlier forecasts with the answers that have come, and describe this one with what that taught."""
        of, began_at = self._models[playing.model], playing.forecast.began_at
        expected = playing.forecast.expected()
        _learn(ends_of, of, expected)
        for request_id, answer in expected.items():
            _remember(of.made, request_id, _Made(answer.stage, began_at, answer.seconds, answer.spread))
        while len(of.made) > MOST_REMEMBERED:
            del of.made[next(iter(of.made))]
        line = playing.forecast.response_line()
        of.published = {
            "at": began_at,
            "line": None if line is None else [round(line.base_s, 4), round(line.token_s, 6)],
            "jobs": _jobs(expected, of.calibration),
        }


def _add_running(of: _OfModel, now: float) -> None:
    """Replace what is published of running rows by what is expected of those that run now."""
    band = of.calibration.band("running")
    published = of.published or {"at": now, "line": None, "jobs": {}}
    jobs = {name: job for name, job in published["jobs"].items() if name not in of.running}
    age_s = now - published["at"]
    for name, answer in of.running.items():
        _remember(of.made, name, _Made("running", now, answer.seconds, answer.spread))
        around = band.around(answer.seconds, answer.spread)
        jobs[name] = [None, *(round(age_s + some, 3) for some in (around.seconds, around.low_s, around.high_s))]
    of.published = published | {"jobs": jobs}


def _learn(ends_of: EndsOf, of: _OfModel, expected: Mapping[str, ExpectedAnswer]) -> None:
    """Requests that are awaited no more have ended, or wait again behind all that a forecast names."""
    gone = [request_id for request_id in of.made if request_id not in expected and request_id not in of.running]
    for request_id, ended_at in ends_of(gone).items() if gone else ():
        for made in of.made.pop(request_id):
            if ended_at is not None:
                of.calibration.learn(made.stage, made.expected_s, made.spread, ended_at - made.at)


def _jobs(expected: Mapping[str, ExpectedAnswer], calibration: IntervalCalibration) -> dict[str, list[Any]]:
    """By request: its position in the queue, null if it runs, and seconds to its answer with the interval's ends."""
    bands: dict[Stage, Any] = {stage: calibration.band(stage) for stage in ("waiting", "running")}
    jobs: dict[str, list[Any]] = {}
    position = 0
    for request_id, answer in expected.items():
        around = bands[answer.stage].around(answer.seconds, answer.spread)
        position += answer.stage == "waiting"
        place = position if answer.stage == "waiting" else None
        jobs[request_id] = [place, round(around.seconds, 3), round(around.low_s, 3), round(around.high_s, 3)]
    return jobs


def _remember(made: dict[str, list[_Made]], request_id: str, forecast: _Made) -> None:
    """Keep a forecast to be judged, if the request has waited notably longer than at the last one that is kept."""
    kept = made.setdefault(request_id, [])
    waited_s = forecast.at - kept[0].at if kept else 0.0
    longer = not kept or waited_s >= LONGER * (kept[-1].at - kept[0].at) + EVERY_S
    if (longer or kept[-1].stage != forecast.stage) and len(kept) < MOST_JUDGED:
        kept.append(forecast)
