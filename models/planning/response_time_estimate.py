"""Computes the ETA given at submission: the planner's forecast for a new request, corrected by earlier errors.

The forecast follows from the order of the queue and the answer's length, which is estimated from the application's
recent answers by input length. It is corrected by the errors of forecasts of similar horizon and of the same third of
the lengths: under most policies short and long answers wait differently. While the planner has no order, the
application's recent response times tell how long an answer takes, and the planner's backlog is a lower bound.
"""

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import StatisticsError, fmean, linear_regression, quantiles
from typing import NamedTuple

from sqlalchemy.orm import Session

from models.connections.sql import database_clock, text
from models.new_requests import NewRequest, SubmissionEta
from models.planning.queue_snapshot import QueueSnapshot
from models.request_predictions import scoped_application
from scheduling.forecast.expectations import IntervalCalibration, OpenForecast, ResponseLine
from scheduling.forecast.queue_order import LATEST

# The lines are fitted to this many newest answers, those of lengths to as many of each application, because lengths do
# not depend on the load. One read returns at most as many. More answers make the lines steadier, fewer follow a change
# of load sooner. Not tuned.
RECENT_ANSWERS = 200
# Lengths of this many applications are kept, those with the newest answers, to bound the memory. Not tuned.
MOST_APPLICATIONS = 1000
# An application with fewer answers uses the line of all applications together. With a smaller number, one unusual
# answer could tilt a line; with a larger one, rare applications would have no line of their own. Not tuned.
MIN_ANSWERS = 8
# The sample is drawn from this many newest unanswered requests of each status, and has this size. Both numbers bound
# the costs of a read behind a long queue.
NEWEST_UNANSWERED, SAMPLED_UNANSWERED = 650, 500
# standard deviation of a forecast's logarithm until errors are known: intervals are 1/3 to 3 times the forecast
SPREAD = 0.6

# Where later requests overtake, errors of earlier forecasts say little after a burst, a load that stops or one that
# steps up. So an ETA is at most MOST_BIAS times its forecast, and its interval holds everything from SOONEST times the
# forecast as if no further request came to that. Simulated at V100's pace, intervals then cover 83 to 94 % where they
# covered 44 to 92 %.
MOST_BIAS, SOONEST = 2.0, 0.8
# A snapshot counts as at most this old: older ones are rare, and another host's clock may differ.
MOST_AGE_S = 2.0

FETCH_RECENT = text("""
    select tenant || '/' || application as application, input_tokens, output_tokens,
        extract(epoch from finished_at - arrived_at)::float8 as response_s,
        extract(epoch from finished_at)::float8 as finished_at, (eta->>'forecast_s')::float8 as forecast_s,
        (eta->>'low_s')::float8 as low_s, (eta->>'high_s')::float8 as high_s, (eta->>'third')::int as third
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
        greatest(1.0, count(*) over () / :most ::float8) as weight, (eta->>'third')::int as third
    from newest, lateral (select extract(epoch from clock_timestamp() - arrived_at)::float8 as age_s) as waits
    where eta is not null order by hashtext(id) limit :most
""")


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
    third: int | None = None


@dataclass(frozen=True, slots=True)
class UnansweredRequest:
    """A request without an answer after `age_s`, whose interval ends in `left_s`; it stands for `weight` requests."""

    forecast_s: float
    age_s: float
    left_s: float | None  # None: no interval was given
    weight: float = 1.0
    third: int | None = None


class _Forecast(NamedTuple):
    """A forecast in seconds, the seconds after which such an answer comes at the latest, and its third of lengths."""

    seconds: float
    soonest_s: float | None  # if no further request came; None where later requests overtake none
    latest_s: float
    third: int | None

    @property
    def most_middle_s(self) -> float:
        """The seconds within which half of such answers are expected at the latest."""
        return math.inf if self.soonest_s is None else MOST_BIAS * self.seconds


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """The expected tokens of an answer and its GPU-seconds, as the usage counts them.

    Nine of ten answers have a length whose seconds are between `low_s` and `high_s`.
    """

    tokens: float
    gpu_s: float
    low_s: float
    high_s: float


Calibrations = Mapping[int | None, IntervalCalibration]  # by third of the lengths; None: of all lengths


@dataclass(frozen=True)
class ResponseTimeEstimate:
    """Response times and output tokens as lines over input tokens, by application; the key None has all of them."""

    response_s: Mapping[str | None, ResponseLine]
    output_tokens: Mapping[str | None, ResponseLine]
    calibrations: Calibrations
    thirds: tuple[float, float] | None = None  # the tokens up to which answers are in the first and the second third
    # by application: nine of ten answers had between these multiples of their expected tokens
    length_ratios: Mapping[str | None, tuple[float, float]] = field(default_factory=dict)

    def eta(self, new: NewRequest, snapshot: QueueSnapshot | None, now: float) -> SubmissionEta | None:
        """Returns the ETA of a request that comes now; None without a worker, or without both answers and snapshot."""
        if snapshot is not None and new.served_by in snapshot.unserved:
            return None
        application = scoped_application(new.tenant, new.application)
        forecast = self._by_order(new, snapshot, now)
        if forecast is None:
            forecast_s = self._without_order_s(application, new.input_tokens, snapshot)
            if forecast_s is None:
                return None
            tokens = self.answer_tokens(application, new.input_tokens, new.limit_tokens)
            forecast = _Forecast(forecast_s, None, math.inf, self._third(tokens))
        told = self._calibration(forecast.third).around("waiting", forecast.seconds, SPREAD)
        if forecast.soonest_s is not None:
            told = told.between(SOONEST * forecast.soonest_s, forecast.most_middle_s)
        told = told.at_most(max(forecast.latest_s, LATEST * told.seconds))
        low_s, high_s = told.told_s
        return SubmissionEta(forecast.seconds, told.seconds, low_s, high_s, forecast.third)

    def within_s(
        self, new: NewRequest, snapshot: QueueSnapshot | None, now: float, shares: Sequence[float]
    ) -> list[float | None]:
        """Returns the seconds within which these shares of such answers come, at most 0.95 each.

        None without evidence: without a recent order of the queue, with too few errors of forecasts, or where so few of
        the latest answers have come that the share would be beyond the time in which everything that waits is served.
        """
        forecast = self._by_order(new, snapshot, now)
        if forecast is None:
            return [None for _ in shares]
        calibration = self._calibration(forecast.third)
        middle_s = calibration.around("waiting", forecast.seconds, SPREAD).seconds
        most_s = max(forecast.latest_s, LATEST * middle_s)
        found = [calibration.within_s("waiting", forecast.seconds, SPREAD, share) for share in shares]
        return [
            None if one is None or one > most_s else one if share > 0.5 else min(one, forecast.most_middle_s)
            for one, share in zip(found, shares, strict=True)
        ]

    def likely_s(self, new: NewRequest, snapshot: QueueSnapshot | None, now: float, share: float) -> float | None:
        """Returns the seconds within which this share of such answers came lately; None without evidence."""
        forecast = self._by_order(new, snapshot, now)
        if forecast is None:
            return None
        calibration = self._calibration(forecast.third)
        return calibration.within_s("waiting", forecast.seconds, SPREAD, share, unanswered=False)

    def _by_order(self, new: NewRequest, snapshot: QueueSnapshot | None, now: float) -> _Forecast | None:
        """Returns the forecast by the order of the queue; None without a recent order, or without recent answers."""
        application = scoped_application(new.tenant, new.application)
        tokens = self.answer_tokens(application, new.input_tokens, new.limit_tokens)
        order = None if snapshot is None else snapshot.order(new.served_by)
        if snapshot is None or order is None or tokens is None:
            return None
        age_s = min(max(0.0, now - snapshot.at.timestamp()), MOST_AGE_S)
        forecast_s, soonest_s = order.response_and_soonest_s(new.prompt_tokens, tokens, new.level, age_s)
        overtaken = bool(order.delay_s)
        latest_s, third = order.latest_s(forecast_s), self._third(tokens)
        return _Forecast(forecast_s, soonest_s if overtaken else None, latest_s, third)

    def _third(self, tokens: float | None) -> int | None:
        return None if tokens is None or self.thirds is None else bisect_left(self.thirds, tokens)

    def work(self, new: NewRequest, token_gpu_s: float | None) -> ExpectedWork | None:
        """Returns the work that a request is expected to be; None without answers, whose tokens took `token_gpu_s`."""
        application = scoped_application(new.tenant, new.application)
        tokens = self.answer_tokens(application, new.input_tokens, new.limit_tokens)
        if tokens is None or token_gpu_s is None:
            return None
        low, high = self.length_ratios.get(application) or self.length_ratios[None]
        least, most = (min(ratio * tokens, new.limit_tokens) for ratio in (min(1.0, low), max(1.0, high)))
        return ExpectedWork(tokens, token_gpu_s * tokens, token_gpu_s * least, token_gpu_s * most)

    def _calibration(self, third: int | None) -> IntervalCalibration:
        """Returns the calibration of a third of the lengths, or that of all lengths while the third has few errors."""
        of_third = self.calibrations[third]
        return of_third if of_third.band("waiting", 1.0).known else self.calibrations[None]

    def answer_tokens(self, application: str, input_tokens: int, limit_tokens: int) -> float | None:
        """Returns the expected tokens of an answer, from recent answers by input length, or None without any."""
        lengths = self.output_tokens.get(application) or self.output_tokens.get(None)
        return None if lengths is None else min(lengths.at(input_tokens), limit_tokens)

    def knows(self, application: str) -> bool:
        """Returns whether `answer_tokens` follows from the application's own answers."""
        return application in self.output_tokens

    def _without_order_s(self, application: str, input_tokens: int, snapshot: QueueSnapshot | None) -> float | None:
        responses = self.response_s.get(application) or self.response_s.get(None)
        if responses is None:
            return None if snapshot is None else (snapshot.queue.backlog_s + snapshot.queue.typical_s) or None
        backlog_s = snapshot.queue.backlog_s if snapshot is not None and snapshot.queue.requests else 0.0
        return max(responses.at(input_tokens), backlog_s)


class AnswerLengths:
    """The lines of applications' lengths, each from its newest answers."""

    def __init__(self) -> None:
        self.lines: dict[str | None, ResponseLine] = {}
        self._answers: dict[str, deque[tuple[int, int]]] = {}  # the application with the newest answer comes last

    def add(self, answers: Collection[RecentAnswer]) -> None:
        """Adds answers, the newest last, and fits the lines of their applications."""
        for name in dict.fromkeys(one.application for one in answers):
            own = self._answers.pop(name, None) or deque(maxlen=RECENT_ANSWERS)
            own.extend((one.input_tokens, one.output_tokens) for one in answers if one.application == name)
            self._answers[name] = own
            if len(own) >= MIN_ANSWERS:
                self.lines[name] = _line(own)
        for name in list(self._answers)[:-MOST_APPLICATIONS]:
            del self._answers[name]
            self.lines.pop(name, None)


class RecentAnswers:
    """The newest answers, and the errors of all forecasts whose answers were read."""

    def __init__(self) -> None:
        self._newest: deque[RecentAnswer] = deque(maxlen=RECENT_ANSWERS)
        self._lengths = AnswerLengths()
        self._calibrations = {third: IntervalCalibration() for third in (None, 0, 1, 2)}
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
        self._lengths.add(answers)
        for third, calibration in self._calibrations.items():
            came = [one for one in answers if third in (None, one.third)]
            open_ = [one for one in unanswered if third in (None, one.third)]
            self._judge(calibration, came, open_, now)
            for one in came:
                if one.forecast_s is not None:
                    calibration.learn("waiting", one.forecast_s, SPREAD, one.response_s, one.finished_at)
            opened = (OpenForecast(one.forecast_s, SPREAD, one.age_s, one.weight) for one in open_)
            calibration.observe("waiting", opened, now)
        self._judged_at = now
        return estimate_response_times(self._newest, self._lengths.lines, self._calibrations)

    def _judge(
        self,
        calibration: IntervalCalibration,
        answers: Collection[RecentAnswer],
        unanswered: Collection[UnansweredRequest],
        now: float,
    ) -> None:
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
        calibration.judge("waiting", before, within, after)


def read_response_times(session: Session, answers: RecentAnswers) -> ResponseTimeEstimate:
    """Adds the answers that came since the last call, and the requests that still wait; returns the new estimate."""
    newest, unanswered = read_newest_answers(session, answers.newest_at), read_unanswered(session)
    return answers.add(newest, unanswered, database_clock(session.connection()).timestamp())


def read_newest_answers(session: Session, since: float) -> list[RecentAnswer]:
    """Returns the newest answers that came after an instant, the newest last."""
    rows = session.execute(FETCH_RECENT, {"since": since, "most": RECENT_ANSWERS}).all()
    return [RecentAnswer(*row) for row in reversed(rows)]


def read_unanswered(session: Session) -> list[UnansweredRequest]:
    """Returns a sample of the newest requests that have no answer."""
    rows = session.execute(FETCH_UNANSWERED, {"newest": NEWEST_UNANSWERED, "most": SAMPLED_UNANSWERED})
    return [UnansweredRequest(*row) for row in rows]


def estimate_response_times(
    answers: Collection[RecentAnswer], lengths: Mapping[str | None, ResponseLine], calibrations: Calibrations
) -> ResponseTimeEstimate:
    """Fits the response times of each application with at least MIN_ANSWERS answers, and the lines of all together."""
    by_application: dict[str | None, list[RecentAnswer]] = defaultdict(list)
    for answer in answers:
        by_application[answer.application].append(answer)
    groups = {name: some for name, some in by_application.items() if len(some) >= MIN_ANSWERS}
    output_tokens = dict(lengths)
    if answers:
        groups[None] = list(answers)
        output_tokens[None] = _line([(one.input_tokens, one.output_tokens) for one in answers])
    first, second = quantiles([one.output_tokens for one in answers], n=3) if len(answers) > 1 else (None, None)
    return ResponseTimeEstimate(
        {name: _line([(one.input_tokens, one.response_s) for one in some]) for name, some in groups.items()},
        output_tokens,
        calibrations,
        None if first is None or second is None else (first, second),
        {name: _ratios(output_tokens[name], some) for name, some in groups.items()},
    )


def _ratios(lengths: ResponseLine, answers: Collection[RecentAnswer]) -> tuple[float, float]:
    """Returns the multiples of the expected tokens between which nine of ten of these answers are."""
    ratios = [one.output_tokens / max(1.0, lengths.at(one.input_tokens)) for one in answers]
    ends = quantiles(ratios, n=20, method="inclusive") if len(ratios) > 1 else ratios
    return ends[0], ends[-1]


def _line(points: Collection[tuple[int, float]]) -> ResponseLine:
    """Fits least squares; the slope is 0 if all inputs are equally long, or if longer inputs were answered sooner."""
    tokens, seconds = zip(*points, strict=True)
    try:
        slope, intercept = linear_regression(tokens, seconds)
    except StatisticsError:
        slope = 0.0
    return ResponseLine(intercept, slope) if slope > 0 else ResponseLine(fmean(seconds), 0.0)
