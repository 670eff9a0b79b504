"""Which lengths belong together on which worker.

In a dense key-value cache every row is padded to the longest of its batch, so a short row beside a long one takes the
long one's memory and time. Each worker therefore has a band: the lengths in order, cut so that each worker's share of
all predicted work, running and waiting, is that of its speed. Bands are a price (see `delay`), not a wall.
"""

import math

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.work_features import NOTHING, Features, coefficients, features
from scheduling.request import Request

STEP = math.log(1.1)
STEPS = 200  # the last begins at 1.7e8 tokens
UPPER_EDGES = np.exp(STEP * np.arange(1, STEPS + 1))


class Backlog:
    """The features of what waits, by steps of the length that a row has at its end."""

    def __init__(self) -> None:
        self._features = np.zeros((STEPS, 4))
        self._total = NOTHING

    def add(self, request: Request) -> None:
        """Count a request."""
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Count it no more."""
        self._count(request, -1)

    def total(self) -> Features:
        """Of all."""
        return self._total

    def work_s(self, fleet: FleetArrays) -> Floats:
        """Seconds of the fleet's mean worker, by step."""
        return np.asarray(self._features @ coefficients(fleet), np.float64)

    def _count(self, request: Request, sign: int) -> None:
        """Features are halves of whole numbers, so their sums are exact whatever comes and goes."""
        rows, prefill, tokens, cached = (sign * feature for feature in features(request))
        self._features[_step(request)] += rows, prefill, tokens, cached
        total = self._total
        self._total = total[0] + rows, total[1] + prefill, total[2] + tokens, total[3] + cached


def _step(request: Request) -> int:
    return min(STEPS - 1, int(math.log(request.prefill + request.remaining) / STEP))


def upper_edges(fleet: FleetArrays, waiting_s: Floats) -> Floats:
    """The upper edge of each worker's band in tokens; the workers keep the order of the lengths that they have."""
    filled = np.arange(fleet.cached.shape[1]) < fleet.size[:, None]
    cached, remaining = fleet.cached[filled], np.maximum(fleet.remaining[filled], 1.0)
    final = cached + remaining
    steps = np.minimum(STEPS - 1, (np.log(final) / STEP).astype(np.int64))
    _, _, generating_s, cached_s = coefficients(fleet)
    running_s = remaining * (generating_s + cached_s * (cached + remaining / 2))
    cumulated = np.cumsum(waiting_s + np.bincount(steps, running_s, STEPS))
    lengths = np.bincount(np.repeat(np.arange(len(fleet)), fleet.size), final, len(fleet))
    order = np.argsort(lengths / np.maximum(fleet.size, 1), kind="stable")
    speed = 1 / (fleet.d4 + fleet.d2 + fleet.d1 * fleet.capacity)
    share = np.cumsum(speed[order]) / speed.sum() * (1 - 1e-9)
    edges = np.empty(len(fleet))
    edges[order] = UPPER_EDGES[np.minimum(STEPS - 1, np.searchsorted(cumulated, share * cumulated[-1]))]
    return edges
