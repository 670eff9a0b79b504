"""Measures the work that is assigned a second while requests wait, compared with what the workers' costs promise.

Learned costs leave out padding, joins that wait for each other, and whatever else runs on a worker's cores. Divided by
the pace, seconds of work become seconds of the clock; if costs change, the pace changes with them.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.fusion.delay_cost import work_features
from scheduling.request import Request

# The pace is a moving average over these seconds in which something waited. Simulated under `baton` at 1.3 times
# saturation, with a median response time of 68 s, ETAs erred by 7.8, 6.1 and 5.7 s with 20, 60 and 150 s.
PACE_S = 60.0
LONGEST_GAP_S = 5.0  # the planner was paused if its decisions are further apart; nothing is learned of such a gap
PRIOR_S = 2.0  # the costs count as right for this many seconds of the average
# Requests that fill empty memory in a moment, or long rows beside which none fits for minutes, say little of the work
# that is served in the long run. With the right costs, 0.42 to 1.98 were simulated; learned costs have fallen to a
# quarter within seconds. Not tuned.
LEAST_PACE, MOST_PACE = 0.1, 4.0


class ServingPace:
    """The work that has been assigned while requests waited, and for how long they have been waiting."""

    def __init__(self) -> None:
        self._at = self._busy_s = 0.0
        self._served = np.zeros(4)  # work features
        self._left = 0  # the requests that waited after the last decision
        self._waits_since: float | None = None  # since when requests have been waiting without a break

    def decided(self, assigned: Iterable[Request], left: int, now: float) -> None:
        """Count the requests of a decision at `now`, after which `left` requests wait."""
        if self._left and 0 <= now - self._at <= LONGEST_GAP_S:  # the database's clock may go back
            faded = math.exp((self._at - now) / PACE_S)
            self._busy_s = faded * self._busy_s + now - self._at
            self._served = faded * self._served + sum((np.array(work_features(one)) for one in assigned), np.zeros(4))
        self._at, self._left = now, left
        if not left:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now

    def waited_s(self, now: float) -> float:
        """Return the seconds for which requests have been waiting without a break."""
        return 0.0 if self._waits_since is None else now - self._waits_since

    def pace(self, work_s: Sequence[float] | Floats) -> float:
        """Return the seconds of work that are served a second, with these seconds for each feature."""
        pace = (PRIOR_S + float(self._served @ np.asarray(work_s))) / (PRIOR_S + self._busy_s)
        return min(MOST_PACE, max(LEAST_PACE, pace))
