"""How long an answer will take, as a client is told when it asks: by how long those took that ended lately.

Seconds from arrival to answer are regressed on input tokens, application by application, so waiting, batching and
serving are all in them as they have lately been, whatever the policy. A queue that has just grown is not: what waits
now is a lower bound.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import StatisticsError, fmean, linear_regression

from sqlalchemy import text
from sqlalchemy.orm import Session

from models.queue_position import QueueSnapshot

LATELY = 200  # answers
FEWEST = 8  # of an application, to be told apart from the others

ENDED_LATELY = text("""
    select application, input_tokens, extract(epoch from finished_at - arrived_at)::float8 as response_s
    from requests
    where status = 'completed' and finished_at > clock_timestamp() - interval '10 minutes'
    order by finished_at desc limit :most
""")


@dataclass(frozen=True, slots=True)
class ResponseTimeLine:
    """Response time in seconds over input tokens."""

    slope: float
    intercept: float

    def at(self, input_tokens: int) -> float:
        """Seconds, never below 0."""
        return max(0.0, self.intercept + self.slope * input_tokens)


@dataclass(frozen=True, slots=True)
class ResponseTimeEstimate:
    """Lines of the applications that ended often enough lately, and one of all; None while nothing has."""

    by_application: Mapping[str, ResponseTimeLine]
    of_all: ResponseTimeLine | None

    def response_s(self, application: str, input_tokens: int, room: QueueSnapshot | None) -> float | None:
        """Seconds until the answer to a request that comes now; None if neither the past nor the planner says."""
        line = self.by_application.get(application, self.of_all)
        if line is None:
            return None if room is None else room.backlog_s + room.typical_s
        behind_s = room.backlog_s if room is not None and room.waiting else 0.0
        return max(line.at(input_tokens), behind_s)


def fit_response_times(ended: Iterable[tuple[str, int, float]]) -> ResponseTimeEstimate:
    """Of answers given as application, input tokens and seconds."""
    points = defaultdict(list)
    for application, input_tokens, response_s in ended:
        points[application].append((input_tokens, response_s))
    lines = {name: _line(some) for name, some in points.items() if len(some) >= FEWEST}
    every = [point for some in points.values() for point in some]
    return ResponseTimeEstimate(lines, _line(every) if every else None)


def read_response_times(session: Session) -> ResponseTimeEstimate:
    """Of what ended last."""
    rows = session.execute(ENDED_LATELY, {"most": LATELY})
    return fit_response_times((row.application, row.input_tokens, row.response_s) for row in rows)


def _line(points: list[tuple[int, float]]) -> ResponseTimeLine:
    """Least squares; level where inputs do not differ or longer ones would be answered sooner."""
    tokens, seconds = zip(*points, strict=True)
    try:
        slope, intercept = linear_regression(tokens, seconds)
    except StatisticsError:
        slope = 0.0
    return ResponseTimeLine(slope, intercept) if slope > 0 else ResponseTimeLine(0.0, fmean(seconds))
