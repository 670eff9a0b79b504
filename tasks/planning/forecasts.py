"""Computes forecasts beside the planner's decisions, one at a time, in pieces, in under a twentieth of its time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from time import thread_time

from models.planning.planner_requests import QueuedRequest
from models.planning.queue_snapshot import AnswerForecast, ModelForecast
from scheduling.forecast.expectations import Expectation, IntervalCalibration, ResponseLine, Stage
from scheduling.forecast.forecast import ExpectedAnswer, Forecast, PresentWork, expected_of_rows
from scheduling.forecast.forecast_inputs import RecentArrivals, copy_of
from scheduling.policy import Policy

# Share of the planner's time for forecasts, in CPU seconds because other processes may run meanwhile. With the fortieth
# for snapshots, nineteen twentieths are left for decisions. Not tuned.
SHARE = 0.03
AT_ONCE_S = 0.02  # in one step: a tenth of a noticeable delay, and longer than most single decisions
# Most time saved up by a new or idle planner for its next steps, so that ETAs exist within a second. Without a bound,
# the share of an idle hour would be spent in the busy minutes after it.
SAVED_S = 0.2
EVERY_S = 0.5  # between the starts of two forecasts: snapshots are no more frequent
MOST_S = 1.0  # of computing for one forecast; the rest is extrapolated at the simulated rate. Not tuned
# An older forecast still gives the time of each place in the queue, but not the request at that place, because other
# requests may have overtaken it. Two snapshots long; not tuned.
FRESH_S = 1.0
MOST_WAITING = 1000  # requests at the front of the queue with forecasts of their own
# A request's forecast is kept for comparison with its answer if it has waited this many times as long as at the last
# one. Otherwise a long job would count once for each forecast. Not tuned.
MOST_JUDGED, LONGER = 3, 2.0
MOST_REMEMBERED = 4000  # requests with forecasts that have not come true yet

# Times of requests' answers by id: None for failed and cancelled requests, no entry for unfinished ones.
EndsOf = Callable[[Sequence[str]], Mapping[str, float | None]]
WorkByModel = Mapping[str, Sequence[PresentWork]]


@dataclass(frozen=True, slots=True)
class _Made:
    """A request's forecast, kept for comparison with its answer."""

    stage: Stage
    at: float
    expected_s: float
    spread: float


@dataclass(frozen=True, slots=True)
class QueueFront:
    """The ids at the front of a model's queue in the present order of service, and the number of waiting requests."""

    ids: Sequence[str] = ()
    total: int = 0


@dataclass(frozen=True)
class _Concluded:
    """A calibrated forecast: the expected answer of each request, in seconds from `at`."""

    at: float
    line: ResponseLine | None
    waiting: Mapping[str, Expectation]  # in the order in which they should be served
    running: Mapping[str, Expectation]

    @cached_property
    def turns(self) -> Sequence[Expectation]:
        """The expectation for each place in the queue, the first place first."""
        return tuple(self.waiting.values())

    def of_queue(self, order: Sequence[str], now: float) -> Iterator[tuple[str, Expectation]]:
        """Return the expected answers of the present queue, in seconds from now, in the order of service."""
        age_s = now - self.at
        for place, request_id in enumerate(order, start=1):
            if age_s <= FRESH_S and request_id in self.waiting:
                yield request_id, self.waiting[request_id].later(-age_s)
            elif turn := self.turn(place):
                yield request_id, turn

    def turn(self, place: int) -> Expectation | None:
        """Return the seconds to the answer at this place in the present queue (1 is next); None if nothing waited."""
        if place <= len(self.turns):
            return self.turns[place - 1]
        return self.turns[-1].scaled(place / len(self.turns)) if self.turns else None


@dataclass(slots=True)
class _OfModel:
    """The forecasts of one model's requests."""

    arrivals: RecentArrivals = field(default_factory=RecentArrivals)
    calibration: IntervalCalibration = field(default_factory=IntervalCalibration)
    made: dict[str, list[_Made]] = field(default_factory=dict)
    running: dict[str, ExpectedAnswer] = field(default_factory=dict)  # running rows at the last snapshot
    concluded: _Concluded | None = None  # the last forecast
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
        self._spent_s, self._saved_s = 0.0, SAVED_S
        self._saved_at: float | None = None

    def see(self, queued: Iterable[QueuedRequest], now: float) -> None:
        """Record requests that were handed to the policies."""
        for one in queued:
            self._of(one.model).arrivals.see(one.request, now)

    def begin(
        self,
        policies: Iterable[tuple[str, Policy]],
        work: Callable[[], WorkByModel],
        now: float,
    ) -> None:
        """Begin the longest overdue forecast if none is in progress and there is time. `work` must include what the
        policies have just assigned.
        """
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
            of.concluded = None
        self._spend(self._clock() - began)

    def advance(self, ends_of: EndsOf, now: float) -> None:
        """Simulate while the share of time allows; when a forecast is complete, learn from earlier ones."""
        playing, left_s = self._in_progress, self._left_s(now)
        if playing is None or left_s <= 0:
            return
        began = self._clock()
        complete = playing.forecast.advance(lambda: self._clock() - began < left_s)
        playing.played_s += self._clock() - began
        if complete or playing.played_s > MOST_S:
            self._in_progress = None
            self._conclude(ends_of, playing)
        self._spend(self._clock() - began)

    @property
    def spent_s(self) -> float:
        """CPU seconds spent on forecasts so far."""
        return self._spent_s

    def described(self, work: WorkByModel, queues: Mapping[str, QueueFront], now: float) -> dict[str, ModelForecast]:
        """Return each model's forecast for the planner's snapshot."""
        began = self._clock()
        described = {}
        for model in dict.fromkeys([*self._models, *work]):
            of = self._of(model)
            of.running = {name: answer for one in work.get(model, ()) for name, answer in expected_of_rows(one)}
            if of.running or of.concluded:
                described[model] = _described(of, queues.get(model, QueueFront()), now)
        self._spend(self._clock() - began)
        return described

    def _of(self, model: str) -> _OfModel:
        return self._models.setdefault(model, _OfModel())

    def _left_s(self, now: float) -> float:
        """Add the share of the time since the last call; return the seconds that this step may spend."""
        since = now if self._saved_at is None else self._saved_at
        self._saved_s, self._saved_at = min(SAVED_S, self._saved_s + SHARE * (now - since)), now
        return min(AT_ONCE_S, self._saved_s)

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
        self._saved_s -= seconds

    def _conclude(self, ends_of: EndsOf, playing: _InProgress) -> None:
        """Compare earlier forecasts with the answers since, and calibrate the new forecast with the errors."""
        of, began_at = self._models[playing.model], playing.forecast.began_at
        expected = playing.forecast.expected()
        _learn(ends_of, of, expected)
        for request_id, answer in expected.items():
            _remember(of.made, request_id, _Made(answer.stage, began_at, answer.seconds, answer.spread))
        while len(of.made) > MOST_REMEMBERED:
            del of.made[next(iter(of.made))]
        line = playing.forecast.response_line()
        told = {one: of.calibration.around(a.stage, a.seconds, a.spread) for one, a in expected.items()}
        waiting = {one: told[one] for one, answer in expected.items() if answer.stage == "waiting"}
        running = {one: told[one] for one, answer in expected.items() if answer.stage == "running"}
        of.concluded = _Concluded(began_at, line, waiting, running)


def _described(of: _OfModel, queue: QueueFront, now: float) -> ModelForecast:
    """Return the last forecast for waiting and running requests; rows of continuous batches by their progress."""
    last = of.concluded
    jobs: dict[str, AnswerForecast] = {}
    for name, answer in of.running.items():
        _remember(of.made, name, _Made("running", now, answer.seconds, answer.spread))
        jobs[name] = _job(None, of.calibration.around("running", answer.seconds, answer.spread))
    if last is None:
        return ModelForecast(at=now, jobs=jobs)
    for name, expected in last.running.items():
        jobs.setdefault(name, _job(None, expected.later(last.at - now)))
    for place, (name, expected) in enumerate(last.of_queue(queue.ids, now), start=1):
        jobs[name] = _job(place, expected)
    middle = last.turn((len(queue.ids) + queue.total) // 2) if queue.total > len(queue.ids) else None
    return ModelForecast(
        at=now,
        line=None if last.line is None else (round(last.line.base_s, 4), round(last.line.token_s, 6)),
        jobs=jobs,
        behind=None if middle is None else _job(None, middle),
    )


def _job(place: int | None, expected: Expectation) -> AnswerForecast:
    return AnswerForecast(place, round(expected.seconds, 3), round(expected.low_s, 3), round(expected.high_s, 3))


def _learn(ends_of: EndsOf, of: _OfModel, expected: Mapping[str, ExpectedAnswer]) -> None:
    """Learn from requests that are no longer awaited: they ended, or wait again behind the forecast front."""
    gone = [request_id for request_id in of.made if request_id not in expected and request_id not in of.running]
    ends = ends_of(gone) if gone else {}
    # Sorted by answer time. Sorted by forecast time, the newest scores, which are kept, would all be of quick answers:
    # the slow answers to the same forecasts have not come yet.
    for request_id in sorted(ends, key=lambda one: ends[one] or 0.0):
        ended_at = ends[request_id]
        for made in of.made.pop(request_id):
            if ended_at is not None:
                of.calibration.learn(made.stage, made.expected_s, made.spread, ended_at - made.at)


def _remember(made: dict[str, list[_Made]], request_id: str, forecast: _Made) -> None:
    """Keep a forecast for comparison if the request has waited notably longer than at the last kept one."""
    kept = made.setdefault(request_id, [])
    waited_s = forecast.at - kept[0].at if kept else 0.0
    longer = not kept or waited_s >= LONGER * (kept[-1].at - kept[0].at) + EVERY_S
    if (longer or kept[-1].stage != forecast.stage) and len(kept) < MOST_JUDGED:
        kept.append(forecast)
