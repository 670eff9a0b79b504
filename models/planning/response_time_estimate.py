"""Computes the ETA given at submission: the planner's forecast for a new request, corrected by earlier errors.

The forecast is a line over the answer's length, which is estimated from the application's recent answers by input
length. While the planner has no forecast, the application's recent response times tell how long an answer takes, and
the planner's backlog is a lower bound.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import StatisticsError, fmean, linear_regression

from sqlalchemy.orm import Session

from models.connections.sql import text
from models.new_requests import SubmissionEta
from models.planning.queue_snapshot import QueueSnapshot
from scheduling.forecast.expectations import IntervalCalibration, OpenForecast, ResponseLine

# The lines are fitted to this many newest answers, and one read returns at most as many. More answers make the lines
# steadier, fewer follow a change of load sooner. Not tuned.
RECENT_ANSWERS = 200
# An application with fewer answers uses the line of all applications together. With a smaller number, one unusual
# answer could tilt a line; with a larger one, rare applications would have no line of their own. Not tuned.
MIN_ANSWERS = 8
# The sample is drawn from this many newest unanswered requests of each status, and has this size. Both numbers bound
# the costs of a read behind a long queue.
NEWEST_UNANSWERED, SAMPLED_UNANSWERED = 650, 500
# standard deviation of a forecast's logarithm until errors are known: intervals are 1/3 to 3 times the forecast
SPREAD = 0.6

FETCH_RECENT = text("""
    select tenant || '/' || application as application, input_tokens, output_tokens,
        extract(epoch from finished_at - arrived_at)::float8 as response_s,
        extract(epoch from finished_at)::float8 as finished_at, (eta->>'forecast_s')::float8 as forecast_s,
        (eta->>'low_s')::float8 as low_s, (eta->>'high_s')::float8 as high_s
    from requests
    where status in ('completed', 'incomplete') and finished_at > to_timestamp(:since)
        and kind = 'answer'
    order by requests.finished_at desc limit :most -- not by the number of that name, which no index has
""")
# A sample of the newest requests without an answer; `weight` is the number of requests that each of them stands for.
FETCH_UNANSWERED = text("""
    with newest as (
        (select id, arrived_at, eta from requests
            where status = 'queued' order by arrived_at desc limit :newest)
        union all
        (select id, arrived_at, eta from requests
            where status = 'in_progress' order by arrived_at desc limit :newest)
    )
    select (eta->>'forecast_s')::float8 as forecast_s, age_s, (eta->>'high_s')::float8 - age_s as left_s,
        greatest(1.0, count(*) over () / :most ::float8) as weight
    from newest, lateral (select extract(epoch from clock_timestamp() - arrived_at)::float8 as age_s) as waits
    where eta is not null order by hashtext(id) limit :most
""")
FETCH_NOW = text("select extract(epoch from clock_timestamp())::float8")


@dataclass(frozen=True, slots=True)
class RecentAnswer:
    """An answer with its true response time, and the forecast and interval given at submission; None without one."""

    application: str
    input_tokens: int
    output_tokens: int
    response_s: float
    finished_at: float
    forecast_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True)
class UnansweredRequest:
    """A request without an answer after `age_s`, whose interval ends in `left_s`; it stands for `weight` requests."""

    forecast_s: float
    age_s: float
    left_s: float | None  # None: no interval was given
    weight: float = 1.0


@dataclass(frozen=True)
class ResponseTimeEstimate:
    """Response times and output tokens as lines over input tokens, by application; the key None has all of them."""

    response_s: Mapping[str | None, ResponseLine]
    output_tokens: Mapping[str | None, ResponseLine]
    calibration: IntervalCalibration

    def eta(
        self, application: str, input_tokens: int, limit_tokens: int, model: str, snapshot: QueueSnapshot | None
    ) -> SubmissionEta | None:
        """Returns the ETA of a request that comes now; None without a worker, or without both answers and snapshot."""
        if snapshot is not None and model in snapshot.unserved:
            return None
        forecast_s = self._forecast_s(application, input_tokens, limit_tokens, model, snapshot)
        if forecast_s is None:
            return None
        told = self.calibration.around("waiting", forecast_s, SPREAD)
        return SubmissionEta(forecast_s, told.seconds, *told.told_s)

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
            return None if snapshot is None else (snapshot.queue.backlog_s + snapshot.queue.typical_s) or None
        forecast = snapshot.response_line(model) if snapshot is not None else None
        if forecast is not None:
            return forecast.at(answer_tokens)
        backlog_s = snapshot.queue.backlog_s if snapshot is not None and snapshot.queue.requests else 0.0
        return max(responses.at(input_tokens), backlog_s)


class RecentAnswers:
    """The newest answers, and the errors of all forecasts whose answers were read."""

    def __init__(self) -> None:
        self._newest: deque[RecentAnswer] = deque(maxlen=RECENT_ANSWERS)
        self._calibration = IntervalCalibration()
        self._judged_at = -math.inf

    @property
    def newest_at(self) -> float:
        """When the newest answer came, in seconds since the epoch; 0 without any."""
        return self._newest[-1].finished_at if self._newest else 0.0

    def add(
        self, answers: Collection[RecentAnswer], unanswered: Collection[UnansweredRequest] = (), now: float = 0.0
    ) -> ResponseTimeEstimate:
        """Adds answers, the newest last, and the requests that have no answer by `now`; returns the new estimate."""
        self._newest.extend(answers)
        self._judge(answers, unanswered, now)
        for one in answers:
            if one.forecast_s is not None:
                self._calibration.learn("waiting", one.forecast_s, SPREAD, one.response_s, one.finished_at)
        opened = (OpenForecast(one.forecast_s, SPREAD, one.age_s, one.weight) for one in unanswered)
        self._calibration.observe("waiting", opened, now)
        return estimate_response_times(self._newest, self._calibration)

    def _judge(self, answers: Collection[RecentAnswer], unanswered: Collection[UnansweredRequest], now: float) -> None:
        """Counts kept and missed intervals; an interval is missed once it has ended without an answer."""
        before = within = after = 0.0
        for one in answers:
            if one.low_s is not None and one.high_s is not None:
                before += one.response_s < one.low_s
                within += one.low_s <= one.response_s <= one.high_s
                ended_at = one.finished_at - one.response_s + one.high_s
                after += one.finished_at > ended_at > self._judged_at
        ends = ((one.weight, now + one.left_s) for one in unanswered if one.left_s is not None)
        after += sum(weight for weight, ended_at in ends if self._judged_at < ended_at <= now)
        self._calibration.judge("waiting", before, within, after)
        self._judged_at = now


def read_response_times(session: Session, answers: RecentAnswers) -> ResponseTimeEstimate:
    """Adds the answers that came since the last call, and the requests that still wait; returns the new estimate."""
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
    """Fits the lines of each application with at least MIN_ANSWERS answers, and the lines of all answers together."""
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
    """Fits least squares; the slope is 0 if all inputs are equally long, or if longer inputs were answered sooner."""
    tokens, seconds = zip(*points, strict=True)
    try:
        slope, intercept = linear_regression(tokens, seconds)
    except StatisticsError:
        slope = 0.0
    return ResponseLine(intercept, slope) if slope > 0 else ResponseLine(fmean(seconds), 0.0)
