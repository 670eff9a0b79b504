"""Computes the shortest completion window that a bulk job should keep, from the windows of ended bulk jobs.

A job's load is its forecast time divided by its window. A policy serves a job sooner as its deadline nears, so a job
with a long window takes long without being late, and the errors of forecasts say little about kept windows.
"""

from collections import deque

import numpy as np

# We aim at keeping 95 % of the windows that are called feasible. Of the ended ones more must have been kept, because a
# load chosen by the same windows promises too much: with 0.95 here, 93 % were kept in a simulation of `magnus`.
KEPT_SHARE = 0.97
REMEMBERED = 200  # only this many of the latest ended jobs count; not tuned


class KeptWindows:
    """The loads of the jobs that ended lately, and whether their windows were kept."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)

    def learn(self, forecast_s: float, window_s: float, kept: bool) -> None:
        """Record a job once it has ended, or once its window has ended without it."""
        self._jobs.append((forecast_s / window_s, kept))

    def shortest_s(self, forecast_s: float) -> float:
        """Return the shortest window, in seconds, that a job of this forecast should keep; infinity if not known."""
        most_load = self.most_load()
        return forecast_s / most_load if most_load > 0 else float("inf")

    def most_load(self) -> float:
        """Return the largest load up to which `KEPT_SHARE` of the windows were kept; 0 if no load is known.

        There the best decreasing fit of the share of kept windows (isotonic regression) falls below `KEPT_SHARE`: for
        each missed window with a lower load, at least 33 with a higher load, up to this one, were kept.
        """
        if not self._jobs:
            return 0.0
        loads, kept = np.array(sorted(self._jobs), np.float64).T
        gained = np.cumsum(kept - KEPT_SHARE)
        best = int(np.argmax(gained))
        # One more job is assumed to have missed its window, because the share of few jobs is not exact.
        return float(loads[best]) if gained[best] >= KEPT_SHARE else 0.0
