"""What anyone could say of an answer's instant without predictions: rivals of the ETA at submission, in seconds."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import Json

HOUR_S = 3600.0
FEWEST = 5  # answers of the last hour before a rival says anything


@dataclass(frozen=True, slots=True)
class Served:
    """When a request arrived and when its answer was complete, seconds since the epoch."""

    arrived_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class Rivals:
    """What was known when a request arrived."""

    last_hour_s: float  # the median response time of the last hour's answers
    little_s: float  # requests in the service, with this one, over the last hour's answers a second (Little's law)
    spread_s: float  # the width of the interval that nine of ten of the last hour's response times are in


class History:
    """The requests of a run, as they were known at any instant."""

    def __init__(self, served: Iterable[Served]) -> None:
        by_end = sorted(served, key=lambda one: one.finished_at)
        self._ends = np.array([one.finished_at for one in by_end])
        self._times = np.array([one.finished_at - one.arrived_at for one in by_end])
        self._arrivals = np.sort(self._ends - self._times)

    def rivals(self, arrived_at: float) -> Rivals | None:
        """Return the rivals of a request that arrives now, or None while too few answers are known."""
        first, ended = np.searchsorted(self._ends, [arrived_at - HOUR_S, arrived_at], "right")
        if ended - first < FEWEST:
            return None
        times = self._times[first:ended]
        inside = int(np.searchsorted(self._arrivals, arrived_at)) - int(ended) + 1
        over_s = min(HOUR_S, arrived_at - float(self._arrivals[0]))
        low, high = np.quantile(times, [0.05, 0.95])
        return Rivals(float(np.median(times)), inside * over_s / len(times), float(high - low))


def beside_rivals(etas: Iterable[tuple[Served, float, float]], history: History) -> Json:
    """Return the medians of ETAs at submission (request, ETA, width of its interval) and of their rivals, if any."""
    compared = [
        (
            abs(eta - one.finished_at),
            abs(one.arrived_at + known.last_hour_s - one.finished_at),
            abs(one.arrived_at + known.little_s - one.finished_at),
            width_s,
            known.spread_s,
        )
        for one, eta, width_s in etas
        if (known := history.rivals(one.arrived_at)) is not None
    ]
    columns: Sequence[Sequence[float]] = list(zip(*compared, strict=True))
    names = ("error_s", "last_hour_error_s", "little_error_s", "width_s", "last_hour_width_s")
    return {name: round(statistics.median(column), 3) for name, column in zip(names, columns, strict=False)}
