"""Says how short a completion window may be so that it is kept, from the windows of ended bulk jobs.

A job's load is the time that was forecast for it over its window. A policy serves a job sooner as its deadline nears,
so a job with a long window takes long without being late, and the errors of forecasts say little of kept windows.
"""

from collections import deque

import numpy as np

# The share of windows that must have been kept where 95 % of those called feasible shall be: a load that was chosen by
# the same windows promises too much. Simulated with 0.95, 93 % were kept under `magnus`.
KEPT_SHARE = 0.97
REMEMBERED = 200  # ended jobs that count. Not tuned


class KeptWindows:
    """The loads of the jobs that ended lately, and whether their windows were kept."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)

    def learn(self, forecast_s: float, window_s: float, kept: bool) -> None:
        """Record a job that has ended, or whose window has."""
        self._jobs.append((forecast_s / window_s, kept))

    def shortest_s(self, forecast_s: float) -> float:
        """Return the shortest window that should be kept by a job of this forecast; infinity if that is not known."""
        most_load = self.most_load()
        return forecast_s / most_load if most_load > 0 else float("inf")

    def most_load(self) -> float:
        """Return the largest load up to which `KEPT_SHARE` of the windows were kept; 0 if that is not known.

        It is where the decreasing share of kept windows that fits best (isotonic regression) falls below `KEPT_SHARE`:
        for each missed window below it, at least 33 with a higher load were kept.
        """
        if not self._jobs:
            return 0.0
        loads, kept = np.array(sorted(self._jobs), np.float64).T
        gained = np.cumsum(kept - KEPT_SHARE)
        best = int(np.argmax(gained))
        # as if one job more had missed its window, since a share of few jobs is not known exactly
        return float(loads[best]) if gained[best] >= KEPT_SHARE else 0.0
