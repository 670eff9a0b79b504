"""How much work waits, by length, and which lengths belong together on which worker.

A row's work is linear in four features, so the sums of the features suffice for any set of requests, whatever the costs
of the workers: rows, prefill tokens, tokens to generate, and cached tokens summed over the iterations. With a fleet's
coefficients they become seconds.

In rectangular memory every row is padded to the longest of its batch, so a short row beside a long one takes the
long one's memory and time. Each worker therefore has a band of lengths: the lengths in order, cut so that each worker's
share of all predicted work, running and waiting, is its share of the fleet's speed. A request outside a worker's band
may join it all the same, at a higher price (see `delay_cost`).
"""

import math

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.request import Request

WorkFeatures = tuple[float, float, float, float]
NO_WORK: WorkFeatures = (0.0, 0.0, 0.0, 0.0)

# Lengths are counted in steps of 10 %. Finer steps cut the bands more exactly and cost time in every decision. Not
# tuned.
LENGTH_STEP = math.log(1.1)
LENGTH_STEPS = (
    200  # the last begins at 1.1^199 = 1.7e8 tokens, beyond any context; any number from 170 (1e7 tokens) does
)
UPPER_EDGES = np.exp(LENGTH_STEP * np.arange(1, LENGTH_STEPS + 1))  # tokens


def work_features(request: Request) -> WorkFeatures:
    """The features of one request that is about to be prefilled."""
    prefill, remaining = request.prefill, request.remaining
    return 1.0, prefill, remaining, remaining * (prefill + remaining / 2)


def seconds_per_feature(fleet: FleetArrays) -> Floats:
    """Seconds that one unit of each feature takes on the fleet's mean worker, (features,).

    The fixed time of an iteration is charged to rows by their share of the memory, since memory is what limits the
    number of rows among which it is divided.
    """
    cached_token_s = fleet.d1 + fleet.d4 / fleet.shared_tokens
    return np.array([fleet.p2.mean(), fleet.p1.mean(), fleet.d2.mean(), cached_token_s.mean()])


class Backlog:
    """The summed features of the requests that wait, in all and by the length that each row will have at its end."""

    def __init__(self) -> None:
        self._by_length = np.zeros((LENGTH_STEPS, 4))
        self._total = NO_WORK

    def add(self, request: Request) -> None:
        """Count a request."""
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Count a request no more."""
        self._count(request, -1)

    def total(self) -> WorkFeatures:
        """The features of all requests that wait."""
        return self._total

    def work_s(self, fleet: FleetArrays) -> Floats:
        """Seconds of work for the fleet's mean worker, by length step."""
        return np.asarray(self._by_length @ seconds_per_feature(fleet), np.float64)

    def _count(self, request: Request, sign: int) -> None:
        """Features are halves of whole numbers, so the sums stay exact whatever is added and removed."""
        rows, prefill, tokens, cached = (sign * feature for feature in work_features(request))
        self._by_length[_length_step(request)] += rows, prefill, tokens, cached
        total = self._total
        self._total = total[0] + rows, total[1] + prefill, total[2] + tokens, total[3] + cached


def _length_step(request: Request) -> int:
    return min(LENGTH_STEPS - 1, int(math.log(request.prefill + request.remaining) / LENGTH_STEP))


def upper_edges(fleet: FleetArrays, waiting_s: Floats) -> Floats:
    """The upper edge of each worker's band in tokens, (workers,); `waiting_s` is `Backlog.work_s`.

    Bands are given out in the order of the mean length of the rows that the workers have, so that a worker keeps
    serving the lengths that it serves now.
    """
    is_row = np.arange(fleet.cached.shape[1]) < fleet.size[:, None]
    cached, remaining = fleet.cached[is_row], np.maximum(fleet.remaining[is_row], 1.0)
    final_length = cached + remaining
    steps = np.minimum(LENGTH_STEPS - 1, (np.log(final_length) / LENGTH_STEP).astype(np.int64))
    _, _, generated_token_s, cached_token_s = seconds_per_feature(fleet)
    running_s = remaining * (generated_token_s + cached_token_s * (cached + remaining / 2))
    cumulated_s = np.cumsum(waiting_s + np.bincount(steps, running_s, LENGTH_STEPS))
    summed_lengths = np.bincount(np.repeat(np.arange(len(fleet)), fleet.size), final_length, len(fleet))
    order = np.argsort(summed_lengths / np.maximum(fleet.size, 1), kind="stable")
    speed = 1 / (fleet.d4 + fleet.d2 + fleet.d1 * fleet.shared_tokens)
    share = np.cumsum(speed[order]) / speed.sum() * (1 - 1e-9)  # rounding must not push the last share beyond 1
    edges = np.empty(len(fleet))
    edges[order] = UPPER_EDGES[np.minimum(LENGTH_STEPS - 1, np.searchsorted(cumulated_s, share * cumulated_s[-1]))]
    return edges
