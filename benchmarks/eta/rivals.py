"""Estimates of an answer's instant that need no predictions: the rivals of the ETA at submission, in seconds."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import Json

HOUR_S = 3600.0
FEWEST = 5  # rivals are known once this many answers ended in the last hour


@dataclass(frozen=True, slots=True)
class Served:
    """The instants of a request's arrival and of its complete answer, in seconds since the epoch."""

    arrived_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class Rivals:
    """The rivals' estimates when a request arrived, in seconds."""

    last_hour_s: float  # the median response time of the last hour's answers
    little_s: float  # the service's requests, this one included, over the last hour's answers a second (Little's law)
    spread_s: float  # the width of the interval that holds nine of ten of the last hour's response times


class History:
    """The requests of a run, as they were known at any instant."""

    def __init__(self, served: Iterable[Served]) -> None:
        by_end = sorted(served, key=lambda one: one.finished_at)
        self._ends = np.array([one.finished_at for one in by_end])
        self._times = np.array([one.finished_at - one.arrived_at for one in by_end])
        self._arrivals = np.sort(self._ends - self._times)

    def rivals(self, arrived_at: float) -> Rivals | None:
        """Return the rivals of a request that arrives at this instant, or None while too few answers are known."""
        first, ended = np.searchsorted(self._ends, [arrived_at - HOUR_S, arrived_at], "right")
        if ended - first < FEWEST:
            return None
        times = self._times[first:ended]
        inside = int(np.searchsorted(self._arrivals, arrived_at)) - int(ended) + 1
        over_s = min(HOUR_S, arrived_at - float(self._arrivals[0]))
        low, high = np.quantile(times, [0.05, 0.95])
        return Rivals(float(np.median(times)), inside * over_s / len(times), float(high - low))


def beside_rivals(etas: Iterable[tuple[Served, float, float]], history: History) -> Json:
    """Return the median errors and widths of ETAs and of their rivals; an ETA is (request, ETA, interval's width)."""
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
