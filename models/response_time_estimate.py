"""The ETA given at submission: a line fitted to the response times of recent answers, for each application.

Response times are regressed on input tokens. They contain waiting, batching and serving as they recently were under
whatever policy, but not a queue that has just grown; therefore the planner's backlog is a lower bound.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import StatisticsError, fmean, linear_regression

from sqlalchemy import text
from sqlalchemy.orm import Session

from models.queue_position import QueueSnapshot

# Newest answers that the lines are fitted to: more of them make the lines steadier, fewer follow a change of load
# sooner. Not tuned.
RECENT_ANSWERS = 200
# Answers of an application that give it a line of its own; one with fewer uses the line of all. Fewer would let one
# unusual answer tilt the line, more would keep rare applications on the line of all. Not tuned.
MIN_ANSWERS = 8

FETCH_RECENT = text("""
    select tenant || '/' || application as application, input_tokens,
        extract(epoch from finished_at - arrived_at)::float8 as response_s
    from requests
    where status in ('completed', 'incomplete') and finished_at > statement_timestamp() - interval '10 minutes'
    order by finished_at desc limit :most
""")


@dataclass(frozen=True, slots=True)
class ResponseTimeLine:
    """Response time in seconds as a linear function of input tokens."""

    slope: float
    intercept: float

    def at(self, input_tokens: int) -> float:
        """The response time in seconds, never below 0."""
        return max(0.0, self.intercept + self.slope * input_tokens)


@dataclass(frozen=True, slots=True)
class ResponseTimeEstimate:
    """A line for each tenant's application with MIN_ANSWERS recent answers, and one of all; None without any answer."""

    by_application: Mapping[str, ResponseTimeLine]
    overall: ResponseTimeLine | None

    def response_s(self, application: str, input_tokens: int, snapshot: QueueSnapshot | None) -> float | None:
        """Seconds until the answer to a request that comes now; None without recent answers and without a snapshot."""
        line = self.by_application.get(application, self.overall)
        if line is None:
            return None if snapshot is None else snapshot.backlog_s + snapshot.typical_s
        backlog_s = snapshot.backlog_s if snapshot is not None and snapshot.waiting else 0.0
        return max(line.at(input_tokens), backlog_s)


def fit_response_times(answers: Iterable[tuple[str, int, float]]) -> ResponseTimeEstimate:
    """Fit the lines to answers given as (application, input tokens, response time in seconds)."""
    points = defaultdict(list)
    for application, input_tokens, response_s in answers:
        points[application].append((input_tokens, response_s))
    lines = {name: _line(some) for name, some in points.items() if len(some) >= MIN_ANSWERS}
    every = [point for some in points.values() for point in some]
    return ResponseTimeEstimate(lines, _line(every) if every else None)


def read_response_times(session: Session) -> ResponseTimeEstimate:
    """Fit the lines to the answers of the last ten minutes, at most RECENT_ANSWERS of them."""
    rows = session.execute(FETCH_RECENT, {"most": RECENT_ANSWERS})
    return fit_response_times((row.application, row.input_tokens, row.response_s) for row in rows)


def _line(points: list[tuple[int, float]]) -> ResponseTimeLine:
    """Least squares; the mean, with slope 0, if all inputs are equally long or longer ones were answered sooner."""
    tokens, seconds = zip(*points, strict=True)
    try:
        slope, intercept = linear_regression(tokens, seconds)
    except StatisticsError:
        slope = 0.0
    return ResponseTimeLine(slope, intercept) if slope > 0 else ResponseTimeLine(0.0, fmean(seconds))
