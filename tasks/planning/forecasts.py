"""Computes forecasts of waiting and running requests for the planner's snapshots, and learns from their errors.

Where rows join and leave, a waiting request is expected by its own place in the order of the queue, anew for each
snapshot. Where batches run to completion, the policy is simulated beside the planner's decisions, one forecast after
the other, in pieces, in 3 % of the planner's time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from time import thread_time

from models.planning.planner_requests import QueuedRequest
from models.planning.queue_snapshot import AnswerForecast, ModelForecast, ModelForecasts
from scheduling.forecast.expectations import Expectation, IntervalCalibration, OpenForecast, Stage
from scheduling.forecast.forecast import ExpectedAnswer, Forecast, PresentWork, expected_of_rows, step_s_of
from scheduling.forecast.forecast_inputs import RecentArrivals, copy_of
from scheduling.forecast.measured_order import RowPace, expected_by_order, queue_order
from scheduling.forecast.queue_order import QueueOrder
from scheduling.policies.fusion.priority_key import Favour
from scheduling.policies.fusion.serving_pace import ServingPace
from scheduling.policy import Assignment, Policy
from scheduling.sharing.model_queue import WaitsBehind

# The share of the planner's time that forecasts may take, measured in CPU seconds, because other processes may have the
# CPU meanwhile. With the fortieth for snapshots it leaves nineteen twentieths for decisions. Not tuned.
SHARE = 0.03
AT_ONCE_S = 0.02  # most CPU seconds in one step: a tenth of a delay that clients notice; most decisions take less
# A planner saves up at most this many CPU seconds of its unused share; otherwise the share of an idle hour would be
# spent in the busy minutes after it. A new planner may spend them in its first steps, so that ETAs exist within a
# second.
SAVED_S = 0.2
EVERY_S = 0.5  # seconds between the beginnings of two forecasts: snapshots are no more frequent
# One forecast takes at most this many CPU seconds. Requests whose answers it has not simulated by then are expected at
# the rate of the simulated answers. Not tuned.
MOST_S = 1.0
# An older forecast still says when each place in the queue is served, but not which request has that place, because
# others have arrived and overtaken meanwhile. As long as two snapshots are apart; not tuned.
FRESH_S = 1.0
MOST_WAITING = 1000  # requests at the front of the queue that a forecast names; others get a common expectation
# At most MOST_JUDGED forecasts of a request in each stage are compared with its answer, each kept once the stage has
# lasted LONGER times as long as at the one before. Otherwise a long job would count as often as it was forecast. Not
# tuned.
MOST_JUDGED, LONGER = 3, 2.0
MOST_BEHIND = 64  # of the requests that a forecast does not name, this many tell their common expectation; not tuned
MOST_OBSERVED = 250  # forecasts without an answer are represented by at most this many, which take a millisecond
MOST_REMEMBERED = 4000  # forecasts are kept for at most this many requests without an answer

# Returns the instants at which requests were answered, by id; None for a request that failed or was cancelled. Leaves
# out requests that have not ended.
EndsOf = Callable[[Sequence[str]], Mapping[str, float | None]]
WorkByModel = Mapping[str, Sequence[PresentWork]]


@dataclass(frozen=True, slots=True)
class _Made:
    """A forecast of when one request is answered, to be compared with the instant of its answer."""

    stage: Stage
    at: float
    expected_s: float
    spread: float
    told: Expectation  # the forecast as it was corrected and published


@dataclass(frozen=True, slots=True)
class ModelQueueView:
    """A model's queue: the ids at its front in the order in which they would be served, and all waiting requests."""

    front: Sequence[str] = ()
    waiting: Collection[WaitsBehind] = ()
    favour: Favour | None = None  # by which `fusion` orders them by arrival and delay; None: by arrival
    joins: bool = True  # whether requests join running rows one by one


@dataclass(frozen=True)
class _Concluded:
    """A complete forecast as published: the expected answer of each request, in seconds from `at`."""

    at: float
    waiting: Mapping[str, Expectation]  # in the expected order of service
    running: Mapping[str, Expectation]

    @cached_property
    def turns(self) -> Sequence[Expectation]:
        """The expectation for each place in the queue, in the order of the places."""
        return tuple(self.waiting.values())

    def for_queue(self, order: Sequence[str], now: float) -> Iterator[tuple[str, Expectation]]:
        """Yields each request that waits now, in the order of service, with its expectation in seconds from `now`."""
        age_s = now - self.at
        for place, request_id in enumerate(order, start=1):
            if age_s <= FRESH_S and request_id in self.waiting:
                yield request_id, self.waiting[request_id].later(-age_s)
            elif turn := self.turn(place):
                yield request_id, turn

    def turn(self, place: int) -> Expectation | None:
        """Returns the expectation for a request that has this place now (1 is next), or None if nothing waited."""
        if place <= len(self.turns):
            return self.turns[place - 1]
        return self.turns[-1].scaled(place / len(self.turns)) if self.turns else None


@dataclass(slots=True)
class _ModelState:
    """The arrivals, forecasts and errors of one model's requests."""

    arrivals: RecentArrivals = field(default_factory=RecentArrivals)
    pace: ServingPace = field(default_factory=ServingPace)
    row_pace: RowPace = field(default_factory=RowPace)
    calibration: IntervalCalibration = field(default_factory=IntervalCalibration)
    made: dict[str, list[_Made]] = field(default_factory=dict)
    running: dict[str, ExpectedAnswer] = field(default_factory=dict)  # answers of rows that ran at the last snapshot
    waiting: Collection[str] = ()  # the requests expected at the last snapshot by their places in the order
    learned: bool = True  # whether errors of forecasts were read since the last snapshot
    concluded: _Concluded | None = None  # the last complete forecast
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
        self._models: dict[str, _ModelState] = {}
        self._in_progress: _InProgress | None = None
        self._spent_s, self._saved_s = 0.0, SAVED_S
        self._saved_at: float | None = None

    def add_arrivals(self, queued: Iterable[QueuedRequest], now: float) -> None:
        """Counts requests that were fed to the policies."""
        for one in queued:
            self._state_of(one.model).arrivals.add(one.request, now)

    def decided(self, assignments: Sequence[Assignment], left: Mapping[str, int], now: float) -> None:
        """Counts what a decision assigned; `left` requests of each model wait after it."""
        for model, waiting in left.items():
            assigned = (one for assignment in assignments for one in assignment.requests if one.model == model)
            self._state_of(model).pace.decided(assigned, waiting, now)

    def begin(self, policies: Iterable[tuple[str, Policy]], work: Callable[[], WorkByModel], now: float) -> None:
        """Begins the forecast that has been due longest, unless one is in progress or there is no time left.

        `work` must contain all requests that the policies have assigned, because these no longer wait in the policies.
        """
        if self._in_progress is not None or self._left_s(now) <= 0:
            return
        due = [
            (state.due_at, model, policy)
            for model, policy in policies
            if policy.mode != "continuous" and (state := self._state_of(model)).due_at <= now
        ]
        if not due:
            return
        began = self._clock()
        _, model, policy = min(due, key=lambda one: one[:2])
        state, of_model = self._state_of(model), work().get(model, ())
        state.due_at = now + EVERY_S
        busy = any(one.worker.rows or one.batches for one in of_model)
        if of_model and (busy or len(policy) or state.arrivals.rate(now)):
            state.begun += 1
            waiting = (request for batch in policy.waiting(now) for request in batch.requests)
            awaited = list(islice(waiting, MOST_WAITING))
            forecast = Forecast(copy_of(policy), of_model, awaited, state.arrivals.expected(now), now, state.begun)
            self._in_progress = _InProgress(model, forecast)
        elif not busy:
            state.concluded = None
        self._spend(self._clock() - began)

    def advance(self, ends_of: EndsOf, now: float) -> None:
        """Continues the forecast while the share of time allows; learns from forecasts whose answers have come."""
        for state in self._models.values():
            if not state.learned:
                _learn(ends_of, state, state.waiting)
                _observe(state, now)
                state.learned = True
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

    def described(self, work: WorkByModel, queues: Mapping[str, ModelQueueView], now: float) -> ModelForecasts:
        """Returns the expectations for each model's requests, for the planner's snapshot."""
        began = self._clock()
        described = {}
        for model in dict.fromkeys([*self._models, *work]):
            state = self._state_of(model)
            state.running = _expected_of_rows(state, work.get(model, ()), now)
            queue = queues.get(model, ModelQueueView())
            order = _order(state, queue, work.get(model, ()), now)
            if state.running or state.concluded or order:
                described[model] = _described(state, queue, order, now)
        self._spend(self._clock() - began)
        return ModelForecasts(spent_s=round(self._spent_s, 3), of_models=described)

    def _state_of(self, model: str) -> _ModelState:
        return self._models.setdefault(model, _ModelState())

    def _left_s(self, now: float) -> float:
        """Adds the forecasts' share of the time since the last call; returns the CPU seconds left for this step."""
        since = now if self._saved_at is None else self._saved_at
        self._saved_s, self._saved_at = min(SAVED_S, self._saved_s + SHARE * (now - since)), now
        return min(AT_ONCE_S, self._saved_s)

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
        self._saved_s -= seconds

    def _conclude(self, ends_of: EndsOf, playing: _InProgress) -> None:
        """Compares earlier forecasts with the answers that have come, and corrects this forecast by their errors."""
        state, began_at = self._models[playing.model], playing.forecast.began_at
        expected = playing.forecast.expected()
        _learn(ends_of, state, expected)
        corrected = {one: state.calibration.around(a.stage, a.seconds, a.spread) for one, a in expected.items()}
        for request_id, answer in expected.items():
            told = corrected[request_id]
            _remember(state.made, request_id, _Made(answer.stage, began_at, answer.seconds, answer.spread, told))
        while len(state.made) > MOST_REMEMBERED:
            del state.made[next(iter(state.made))]
        waiting = {one: corrected[one] for one, answer in expected.items() if answer.stage == "waiting"}
        running = {one: corrected[one] for one, answer in expected.items() if answer.stage == "running"}
        state.concluded = _Concluded(began_at, waiting, running)


def _expected_of_rows(state: _ModelState, work: Sequence[PresentWork], now: float) -> dict[str, ExpectedAnswer]:
    """Returns the expected answers of running rows at the pace at which rows have lately gained tokens."""
    busy = [one for one in work if one.worker.rows]
    state.row_pace.looked(((one.worker.rows, step_s_of(one)) for one in busy), now)
    return {name: answer for one in busy for name, answer in expected_of_rows(one, state.row_pace.slowness)}


def _order(state: _ModelState, queue: ModelQueueView, work: Sequence[PresentWork], now: float) -> QueueOrder | None:
    """Returns the order of a model's queue; None without a worker, or if iterations take no time by its costs."""
    if not work:
        return None
    order = queue_order(
        queue.waiting,
        state.arrivals,
        state.pace,
        [replace(one.worker, busy_s=max(one.loads_s, one.worker.busy_s)) for one in work],
        now,
        slowness=state.row_pace.slowness,
        favour=queue.favour,
        joins=queue.joins,
    )
    return order if order.token_s > 0 else None


def _described(state: _ModelState, queue: ModelQueueView, order: QueueOrder | None, now: float) -> ModelForecast:
    """Returns the last forecast for the requests that wait and run now; running rows are forecast by their progress."""
    last = state.concluded
    jobs = {
        name: _job(None, _told(state, name, answer, now))._replace(length=answer.length)
        for name, answer in state.running.items()
    }
    if queue.joins:
        return _described_by_order(state, queue, order, jobs, now)
    if last is None:
        return ModelForecast(at=now, order=order, jobs=jobs)
    for name, expected in last.running.items():
        jobs.setdefault(name, _job(None, expected.later(last.at - now)))
    for place, (name, expected) in enumerate(last.for_queue(queue.front, now), start=1):
        jobs[name] = _job(place, expected)
    named, total = len(queue.front), len(queue.waiting)
    middle = last.turn((named + total) // 2) if total > named else None
    return ModelForecast(
        at=now,
        order=order,
        jobs=jobs,
        behind=None if middle is None else _job(None, middle),
    )


def _described_by_order(
    state: _ModelState, queue: ModelQueueView, order: QueueOrder | None, jobs: dict[str, AnswerForecast], now: float
) -> ModelForecast:
    """Returns a forecast in which each waiting request is expected by its own place in the order of the queue."""
    state.waiting, state.learned = (), False
    if order is None:
        return ModelForecast(at=now, jobs=jobs)
    others = {one.request.id: one for one in queue.waiting}
    places = {name: place for place, name in enumerate(queue.front, start=1) if name in others}
    expected = expected_by_order(order, [others.pop(name) for name in places], now)
    state.waiting = expected.keys()
    jobs |= {name: _job(places[name], _told(state, name, answer, now)) for name, answer in expected.items()}
    behind = expected_by_order(order, _some(others.values(), MOST_BEHIND), now)
    middle = sorted(behind.values(), key=lambda one: one.seconds)[len(behind) // 2 : len(behind) // 2 + 1]
    told = [state.calibration.around(one.stage, one.seconds, one.spread) for one in middle]
    return ModelForecast(at=now, order=order, jobs=jobs, behind=_job(None, told[0]) if told else None)


def _some(every: Collection[WaitsBehind], most: int) -> list[WaitsBehind]:
    return list(islice(every, 0, None, 1 + len(every) // most))


def _told(state: _ModelState, name: str, answer: ExpectedAnswer, now: float) -> Expectation:
    """Returns the corrected forecast, which is remembered until the answer comes."""
    told = state.calibration.around(answer.stage, answer.seconds, answer.spread)
    _remember(state.made, name, _Made(answer.stage, now, answer.seconds, answer.spread, told))
    while len(state.made) > MOST_REMEMBERED:
        del state.made[next(iter(state.made))]
    return told


def _job(place: int | None, expected: Expectation) -> AnswerForecast:
    low_s, high_s = (None if end is None else round(end, 3) for end in expected.told_s)
    return AnswerForecast(place, round(expected.seconds, 3), low_s, high_s)


def _learn(ends_of: EndsOf, state: _ModelState, expected: Collection[str]) -> None:
    """Learns from the errors of the forecasts of requests that have ended."""
    gone = [request_id for request_id in state.made if request_id not in expected and request_id not in state.running]
    ends = ends_of(gone) if gone else {}
    # Learns in the order of the answers, because only the newest scores are kept. In the order of the forecasts, all of
    # these would be scores of quick answers: the slow answers of the same forecasts have not come yet.
    for request_id in sorted(ends, key=lambda one: ends[one] or 0.0):
        ended_at = ends[request_id]
        for made in state.made.pop(request_id):
            if ended_at is not None:
                real_s = ended_at - made.at
                state.calibration.learn(made.stage, made.expected_s, made.spread, real_s, ended_at)
                before, after = real_s < made.told.low_s, real_s > made.told.high_s
                state.calibration.judge(made.stage, before, not before and not after, after)


def _observe(state: _ModelState, now: float) -> None:
    """Counts forecasts without an answer, because the errors of those that have one are the errors of early answers."""
    waiting = [made[0] for name in state.waiting if (made := state.made.get(name))]
    sample = waiting[:: 1 + len(waiting) // MOST_OBSERVED]
    weight = len(waiting) / max(1, len(sample))
    opened = (OpenForecast(one.expected_s, one.spread, now - one.at, weight) for one in sample)
    state.calibration.observe("waiting", opened, now)


def _remember(made: dict[str, list[_Made]], request_id: str, forecast: _Made) -> None:
    """Keeps a forecast for comparison with the answer if its stage has lasted LONGER times as long as at the last."""
    kept = made.setdefault(request_id, [])
    of_stage = [one.at for one in kept if one.stage == forecast.stage]
    longer = not of_stage or forecast.at - of_stage[0] >= LONGER * (of_stage[-1] - of_stage[0]) + EVERY_S
    if longer and len(of_stage) < MOST_JUDGED:
        kept.append(forecast)
