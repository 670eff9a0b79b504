"""Forecasts beside the planner's decisions: one after the other, in pieces, in less than a twentieth of its time."""

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

# Of the planner's time, in CPU seconds, since others may have the CPU meanwhile. With the snapshots' own fortieth it
# leaves nineteen twentieths for decisions. Not tuned.
SHARE = 0.03
AT_ONCE_S = 0.02  # in one step: a tenth of what a client notices, and more than most single decisions
# What a new planner, or one that had nothing to forecast, may spend in its next steps, so that ETAs are there within a
# second. Without a bound, an idle hour would be spent on forecasts in the busy minutes after it.
SAVED_S = 0.2
EVERY_S = 0.5  # between two forecasts' beginnings: snapshots are no more frequent
MOST_S = 1.0  # of computing for one forecast; what is not played by then is expected at the rate of what was. Not tuned
# An older forecast still says when each place in the queue has its turn, but not which request has that place: others
# have come and gone ahead meanwhile. Two snapshots long; not tuned.
FRESH_S = 1.0
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


@dataclass(frozen=True, slots=True)
class QueueFront:
    """The ids at the front of a model's queue, in the order in which they would be served now, and how many wait."""

    ids: Sequence[str] = ()
    total: int = 0


@dataclass(frozen=True)
class _Concluded:
    """A forecast as it is told: what is expected of each request, in seconds from `at`."""

    at: float
    line: ResponseLine | None
    waiting: Mapping[str, Expectation]  # in the order in which they should be served
    running: Mapping[str, Expectation]

    @cached_property
    def turns(self) -> Sequence[Expectation]:
        """What is expected of each place in the queue, the first one first."""
        return tuple(self.waiting.values())

    def of_queue(self, order: Sequence[str], now: float) -> Iterator[tuple[str, Expectation]]:
        """What is expected, in seconds from now, of the requests that wait now, in the order of service."""
        age_s = now - self.at
        for place, request_id in enumerate(order, start=1):
            if age_s <= FRESH_S and request_id in self.waiting:
                yield request_id, self.waiting[request_id].later(-age_s)
            elif turn := self.turn(place):
                yield request_id, turn

    def turn(self, place: int) -> Expectation | None:
        """Seconds to the answer of a request that has this place in the queue now; 1 is next. None: nothing waited."""
        if place <= len(self.turns):
            return self.turns[place - 1]
        return self.turns[-1].scaled(place / len(self.turns)) if self.turns else None


@dataclass(slots=True)
class _OfModel:
    """What is known of one model's requests."""

    arrivals: RecentArrivals = field(default_factory=RecentArrivals)
    calibration: IntervalCalibration = field(default_factory=IntervalCalibration)
    made: dict[str, list[_Made]] = field(default_factory=dict)
    running: dict[str, ExpectedAnswer] = field(default_factory=dict)  # the rows that run, as of the last snapshot
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
        self._spend(self._clock() - began)

    @property
    def spent_s(self) -> float:
        """Seconds of CPU so far."""
        return self._spent_s

    def described(self, work: WorkByModel, queues: Mapping[str, QueueFront], now: float) -> dict[str, ModelForecast]:
        """What is expected of each model's requests, for the planner's snapshot."""
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
        """Save up for the time since the last call; what may be spent in this step."""
        since = now if self._saved_at is None else self._saved_at
        self._saved_s, self._saved_at = min(SAVED_S, self._saved_s + SHARE * (now - since)), now
        return min(AT_ONCE_S, self._saved_s)

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
        self._saved_s -= seconds

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
        told = {one: of.calibration.around(a.stage, a.seconds, a.spread) for one, a in expected.items()}
        waiting = {one: told[one] for one, answer in expected.items() if answer.stage == "waiting"}
        running = {one: told[one] for one, answer in expected.items() if answer.stage == "running"}
        of.concluded = _Concluded(began_at, line, waiting, running)


def _described(of: _OfModel, queue: QueueFront, now: float) -> ModelForecast:
    """The last forecast for those that wait and run now; rows of continuous batches by their progress."""
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
    """Requests that are awaited no more have ended, or wait again behind all that a forecast names."""
    gone = [request_id for request_id in of.made if request_id not in expected and request_id not in of.running]
    ends = ends_of(gone) if gone else {}
    # In the order of the answers. In that of the forecasts the newest scores, which are kept, would be those of quick
    # answers alone: the slow ones of the same forecasts have not come yet.
    for request_id in sorted(ends, key=lambda one: ends[one] or 0.0):
        ended_at = ends[request_id]
        for made in of.made.pop(request_id):
            if ended_at is not None:
                of.calibration.learn(made.stage, made.expected_s, made.spread, ended_at - made.at)


def _remember(made: dict[str, list[_Made]], request_id: str, forecast: _Made) -> None:
    """Keep a forecast to be judged, if the request has waited notably longer than at the last one that is kept."""
    kept = made.setdefault(request_id, [])
    waited_s = forecast.at - kept[0].at if kept else 0.0
    longer = not kept or waited_s >= LONGER * (kept[-1].at - kept[0].at) + EVERY_S
    if (longer or kept[-1].stage != forecast.stage) and len(kept) < MOST_JUDGED:
        kept.append(forecast)
