"""How far the predicted peak of a worker's memory may exceed it: one factor a worker, found by feedback.

The predicted peak adds up medians of the rows' lengths. Some rows end sooner and others later, so a peak of this height
seldom comes, the less so the less certain the predictions are: memory stands empty while requests wait. So a request
may join if the peak stays within `factor` times the memory. While requests wait, a factor moves by GAIN times the
distance of the memory in use from the share that should be in use, once for each time that the worker's rows turn over;
while no request waits, it returns to 1 in the same time. Rows that had to leave for lack of memory wait at the worker
and still count: memory then is in use beyond its size, and beyond that by the share of the turnover that it takes to
compute their tokens again. So the factor falls the faster the more preemptions cost.

Free memory is worth something where predictions are good, because a short request can join at once. The share that
should be in use therefore falls with the weight of the predictions (`rank_correlation.prediction_weight`).
"""

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.fusion.fleet_arrays import TINY_S, FleetArrays

# Ratios below are means of simulated response times at 1.3 times saturation over those with a factor of 1.
# Bounds what one decision may let in. With 0.88 of the memory wanted, nine of ten factors are below 1.6.
MOST_FACTOR = 3.0
GAIN = 5.0  # useless predictions on `hard`: 0.96 with 1, 0.81 with 5, 0.83 with 10
# The share of the memory that should be in use while requests wait, if predictions tell nothing: 0.88 gives 0.88 on
# `hard` and 0.86 on bursts of chats, 0.95 gives 0.84 and 0.82.
FULL_SHARE = 0.95
# The part of it that stays free if predictions are exact. At a tau of 0.4 this leaves 0.12 of memory free; 0.08 gave
# a mean of 1.06 in a simulation where 0.12 gave 1.01.
FREE_SHARE = 0.12


class PeakLimits:
    """The factors of the workers of the last decision, from 1 to MOST_FACTOR; a new worker's factor is 1."""

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}
        self._at = 0.0  # the instant of the last decision
        self._waited = False  # whether requests that fitted nowhere waited after the last decision

    def factors(self, fleet: FleetArrays, weight: float, now: float) -> Floats:
        """Return the factors, (workers,), moved by what has happened since the last decision.

        `weight` is the weight of the predictions, from 0 to 1.
        """
        factors = np.array([self._factors.get(name, 1.0) for name in fleet.names])
        turnover_s = fleet.turnover_s()
        wanted = FULL_SHARE - FREE_SHARE * weight
        free = np.where(fleet.size > 0, wanted - used_share(fleet, turnover_s), 0.0)  # an empty worker takes any row
        change = GAIN * free if self._waited else 1.0 - factors
        turnovers = np.clip((now - self._at) / np.maximum(turnover_s, TINY_S), 0.0, 1.0)
        factors = np.clip(factors + change * turnovers, 1.0, MOST_FACTOR)
        self._factors, self._at = dict(zip(fleet.names, factors.tolist(), strict=True)), now
        return factors

    def after_decision(self, waits: bool) -> None:
        """Note whether requests still wait because they fit nowhere."""
        self._waited = waits


def used_share(fleet: FleetArrays, turnover_s: Floats) -> Floats:
    """Return the share of each worker's memory in use, (workers,), above 1 if preempted rows wait there.

    Rows that wait there count with the share of `turnover_s` that it takes to compute their tokens again.
    """
    used = fleet.used_tokens()
    waiting = np.maximum(0.0, used - fleet.capacity)
    again_s = np.where(waiting > 0, fleet.p4 + fleet.p1 * waiting, 0.0)
    return np.asarray(used / np.maximum(fleet.capacity, 1.0) + again_s / np.maximum(turnover_s, TINY_S), np.float64)
