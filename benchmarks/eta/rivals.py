"""Estimates of an answer's instant that need no predictions: the rivals of the ETA at submission, in seconds."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import Json

HOUR_S = 3600.0
Z90 = 1.645  # a normal variable is within this many standard deviations in nine of ten cases
FEWEST = 5  # rivals are known once this many answers ended in the last hour


@dataclass(frozen=True, slots=True)
class Served:
    """The instants of a request's arrival and of its complete answer, in seconds since the epoch."""

    arrived_at: float
    finished_at: float
    started_at: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Rivals:
    """The rivals' estimates when a request arrived, in seconds."""

    last_hour_s: float  # the median response time of the last hour's answers
    little_s: float  # the service's requests, this one included, over the last hour's answers a second (Little's law)
    hour: tuple[float, float]  # the interval that holds nine of ten of the last hour's response times
    qlm_s: float | None  # QLM's estimate; None without the throughput of a full service
    qlm: tuple[float, float]  # its interval


class History:
    """The requests of a run, as they were known at any instant."""

    def __init__(self, served: Iterable[Served], full_tokens_per_s: float | None = None) -> None:
        """`full_tokens_per_s` is QLM's Θ: the tokens that the service generates a second while its queue is full."""
        self._full_tokens_per_s = full_tokens_per_s
        by_end = sorted(served, key=lambda one: one.finished_at)
        self._ends = np.array([one.finished_at for one in by_end])
        self._times = np.array([one.finished_at - one.arrived_at for one in by_end])
        self._tokens = np.array([one.tokens for one in by_end], np.float64)
        self._service_s = np.array([one.finished_at - one.started_at for one in by_end])
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
        qlm_s, qlm = self._qlm(int(first), int(ended), inside - 1)
        return Rivals(float(np.median(times)), inside * over_s / len(times), (float(low), float(high)), qlm_s, qlm)

    def _qlm(self, first: int, ended: int, ahead: int) -> tuple[float | None, tuple[float, float]]:
        """Return QLM's estimate and interval (after arXiv 2407.00047, whose text was not at hand).

        The tokens of the requests ahead are a normal sum with the mean and variance of the last hour's answers, served
        at a constant throughput. Its own service takes as long as the last hour's.
        """
        if not self._full_tokens_per_s:
            return None, (0.0, 0.0)
        tokens, service_s = self._tokens[first:ended], self._service_s[first:ended]
        waits_s = ahead * float(tokens.mean()) / self._full_tokens_per_s
        deviation_s = Z90 * float(tokens.std()) * math.sqrt(ahead) / self._full_tokens_per_s
        low, middle, high = np.quantile(service_s, [0.05, 0.5, 0.95]).tolist()
        seconds = waits_s + middle
        return seconds, (
            seconds - math.hypot(deviation_s, middle - low),
            seconds + math.hypot(deviation_s, high - middle),
        )


def beside_rivals(etas: Iterable[tuple[Served, float, float]], history: History) -> Json:
    """Return the median errors and widths of ETAs and rivals, and rivals' coverage.

    An ETA is (request, ETA, interval's width).
    """
    rows = []
    for one, eta, width_s in etas:
        if (known := history.rivals(one.arrived_at)) is not None:
            took_s = one.finished_at - one.arrived_at
            rows.append(
                {
                    "error_s": abs(eta - one.finished_at),
                    "width_s": width_s,
                    "last_hour_error_s": abs(known.last_hour_s - took_s),
                    "last_hour_width_s": known.hour[1] - known.hour[0],
                    "last_hour_coverage": float(known.hour[0] <= took_s <= known.hour[1]),
                    "little_error_s": abs(known.little_s - took_s),
                }
            )
            if known.qlm_s is not None:
                rows[-1] |= {
                    "qlm_error_s": abs(known.qlm_s - took_s),
                    "qlm_width_s": known.qlm[1] - known.qlm[0],
                    "qlm_coverage": float(known.qlm[0] <= took_s <= known.qlm[1]),
                }
    if not rows:
        return {}
    means = {name: (statistics.fmean if name.endswith("coverage") else statistics.median) for name in rows[0]}
    result: Json = {name: round(summarise(row[name] for row in rows), 4) for name, summarise in means.items()}
    return result | {"mean_width_s": round(statistics.fmean(row["width_s"] for row in rows), 3)}
