"""Computes the ETA given at submission: the planner's forecast for a new request, corrected by earlier errors.

The forecast is a line over the answer's length, which follows from the application's recent answers by input length.
While the planner has none, recent response times of the application tell how long an answer takes; its backlog is then
a lower bound.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import StatisticsError, fmean, linear_regression

from sqlalchemy.orm import Session

from models.planning.queue_snapshot import QueueSnapshot
from models.sql import text
from scheduling.forecast.expectations import IntervalCalibration, OpenForecast, ResponseLine

# Newest answers that the lines are fitted to, and the most that are read at once: more of them make the lines steadier,
# fewer follow a change of load sooner. Not tuned.
RECENT_ANSWERS = 200
# An application with fewer answers uses the line of all applications. A smaller number would let one unusual answer
# tilt a line, a larger one would keep rare applications on the line of all. Not tuned.
MIN_ANSWERS = 8
# Unanswered requests that are looked through for a sample, and the size of the sample. Both bound what a read costs
# behind a long queue.
NEWEST_UNANSWERED, SAMPLED_UNANSWERED = 650, 500
# standard deviation of a forecast's logarithm until errors are known: intervals are 1/3 to 3 times the forecast
SPREAD = 0.6

FETCH_RECENT = text("""
    select tenant || '/' || application as application, input_tokens, output_tokens,
        extract(epoch from finished_at - arrived_at)::float8 as response_s,
        extract(epoch from finished_at)::float8 as finished_at, forecast_s,
        extract(epoch from eta_low_at)::float8 as eta_low_at, extract(epoch from eta_high_at)::float8 as eta_high_at
    from requests
    where status in ('completed', 'incomplete') and finished_at > to_timestamp(:since)
        and limit_tokens > 1 -- not those that generate nothing
    order by requests.finished_at desc limit :most -- not by the number of that name, which no index has
""")
# A sample of the newest requests without an answer, each with the number that it stands for.
FETCH_UNANSWERED = text("""
    with newest as (
        (select id, arrived_at, forecast_s, eta_high_at from requests
            where status = 'queued' order by arrived_at desc limit :newest)
        union all
        (select id, arrived_at, forecast_s, eta_high_at from requests
            where status = 'in_progress' order by arrived_at desc limit :newest)
    )
    select forecast_s, extract(epoch from clock_timestamp() - arrived_at)::float8 as age_s,
        extract(epoch from eta_high_at - clock_timestamp())::float8 as left_s,
        greatest(1.0, count(*) over () / :most ::float8) as weight
    from newest where forecast_s is not null order by hashtext(id) limit :most
""")
FETCH_NOW = text("select extract(epoch from clock_timestamp())::float8")


@dataclass(frozen=True, slots=True)
class RecentAnswer:
    """An answer with the forecast and the interval at its submission and its true time; None: there was no forecast."""

    application: str
    input_tokens: int
    output_tokens: int
    response_s: float
    finished_at: float
    forecast_s: float | None = None
    eta_low_at: float | None = None
    eta_high_at: float | None = None


@dataclass(frozen=True, slots=True)
class UnansweredRequest:
    """A request that has no answer after `age_s`; its interval ends in `left_s`. It stands for `weight` requests."""

    forecast_s: float
    age_s: float
    left_s: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SubmissionEta:
    """Seconds until the answer: forecast, corrected ETA and its interval, named as in `new_requests.NewRequest`."""

    forecast_s: float
    eta_s: float
    eta_low_s: float
    eta_high_s: float


@dataclass(frozen=True)
class ResponseTimeEstimate:
    """Response times and output tokens as lines over input tokens, by application; the key None has those of all."""

    response_s: Mapping[str | None, ResponseLine]
    output_tokens: Mapping[str | None, ResponseLine]
    calibration: IntervalCalibration

    def eta(
        self, application: str, input_tokens: int, limit_tokens: int, model: str, snapshot: QueueSnapshot | None
    ) -> SubmissionEta | None:
        """Returns the ETA of a request that comes now, or None without a worker, or without answers and snapshot."""
        if snapshot is not None and model in snapshot.unserved:
            return None
        forecast_s = self._forecast_s(application, input_tokens, limit_tokens, model, snapshot)
        if forecast_s is None:
            return None
        told = self.calibration.around("waiting", forecast_s, SPREAD)
        return SubmissionEta(forecast_s, told.seconds, told.low_s, told.high_s)

    def answer_tokens(self, application: str, input_tokens: int, limit_tokens: int) -> float | None:
        """Returns the expected tokens of an answer, from recent answers by input length, or None without any."""
        lengths = self.output_tokens.get(application) or self.output_tokens.get(None)
        return None if lengths is None else min(lengths.at(input_tokens), limit_tokens)

    def _forecast_s(
        self, application: str, input_tokens: int, limit_tokens: int, model: str, snapshot: QueueSnapshot | None
    ) -> float | None:
        answer_tokens = self.answer_tokens(application, input_tokens, limit_tokens)
        responses = self.response_s.get(application) or self.response_s.get(None)
        if answer_tokens is None or responses is None:
            return None if snapshot is None else (snapshot.backlog_s + snapshot.typical_s) or None
        forecast = snapshot.response_line(model) if snapshot is not None else None
        if forecast is not None:
            return forecast.at(answer_tokens)
        backlog_s = snapshot.backlog_s if snapshot is not None and snapshot.waiting else 0.0
        return max(responses.at(input_tokens), backlog_s)


class RecentAnswers:
    """The newest answers, and the errors of all forecasts whose answers were read."""

    def __init__(self) -> None:
        self._newest: deque[RecentAnswer] = deque(maxlen=RECENT_ANSWERS)
        self._calibration = IntervalCalibration()
        self._judged_at = -math.inf

    @property
    def newest_at(self) -> float:
        """When the last of them came; 0 without any."""
        return self._newest[-1].finished_at if self._newest else 0.0

    def add(
        self, answers: Collection[RecentAnswer], unanswered: Collection[UnansweredRequest] = (), now: float = 0.0
    ) -> ResponseTimeEstimate:
        """Adds newer answers, the newest last, and the requests that have none by `now`; estimates from all."""
        self._newest.extend(answers)
        self._judge(answers, unanswered, now)
        for one in answers:
            if one.forecast_s is not None:
                self._calibration.learn("waiting", one.forecast_s, SPREAD, one.response_s, one.finished_at)
        opened = (OpenForecast(one.forecast_s, SPREAD, one.age_s, one.weight) for one in unanswered)
        self._calibration.observe("waiting", opened, now)
        return estimate_response_times(self._newest, self._calibration)

    def _judge(self, answers: Collection[RecentAnswer], unanswered: Collection[UnansweredRequest], now: float) -> None:
        """Counts the intervals that were kept and missed; one counts as missed once it has ended without an answer."""
        before = within = after = 0.0
        for one in answers:
            if one.eta_low_at is not None and one.eta_high_at is not None:
                before += one.finished_at < one.eta_low_at
                within += one.eta_low_at <= one.finished_at <= one.eta_high_at
                after += one.finished_at > one.eta_high_at > self._judged_at
        after += sum(one.weight for one in unanswered if self._judged_at < now + one.left_s <= now)
        self._calibration.judge("waiting", before, within, after)
        self._judged_at = now


def read_response_times(session: Session, answers: RecentAnswers) -> ResponseTimeEstimate:
    """Adds the newest answers that came since the last call, and who still waits; estimates from all."""
    newest, unanswered = read_newest_answers(session, answers.newest_at), read_unanswered(session)
    return answers.add(newest, unanswered, session.scalar(FETCH_NOW) or 0.0)


def read_newest_answers(session: Session, since: float) -> list[RecentAnswer]:
    """Returns the newest answers that came after an instant, the newest last."""
    rows = session.execute(FETCH_RECENT, {"since": since, "most": RECENT_ANSWERS}).all()
    return [RecentAnswer(*row) for row in reversed(rows)]


def read_unanswered(session: Session) -> list[UnansweredRequest]:
    """Returns a sample of the newest requests that have no answer."""
    rows = session.execute(FETCH_UNANSWERED, {"newest": NEWEST_UNANSWERED, "most": SAMPLED_UNANSWERED})
    return [UnansweredRequest(*row) for row in rows]


def estimate_response_times(
    answers: Collection[RecentAnswer], calibration: IntervalCalibration
) -> ResponseTimeEstimate:
    """Fits the lines."""
    by_application: dict[str | None, list[RecentAnswer]] = defaultdict(list)
    for answer in answers:
        by_application[answer.application].append(answer)
    groups = {name: some for name, some in by_application.items() if len(some) >= MIN_ANSWERS}
    if answers:
        groups[None] = list(answers)
    return ResponseTimeEstimate(
        {name: _line([(one.input_tokens, one.response_s) for one in some]) for name, some in groups.items()},
        {name: _line([(one.input_tokens, one.output_tokens) for one in some]) for name, some in groups.items()},
        calibration,
    )


def _line(points: list[tuple[int, float]]) -> ResponseLine:
    """Fits least squares; the slope is 0 if all inputs are equally long or longer ones were answered sooner."""
    tokens, seconds = zip(*points, strict=True)
    try:
        slope, intercept = linear_regression(tokens, seconds)
    except StatisticsError:
        slope = 0.0
    return ResponseLine(intercept, slope) if slope > 0 else ResponseLine(fmean(seconds), 0.0)
