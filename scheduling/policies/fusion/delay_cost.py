"""Prices a request on each worker, by the waiting work, the worker's band of lengths, and the delay of all requests.

Work. A request's work is linear in four features: rows (1), prefill tokens, tokens to generate, and cached tokens
summed over the iterations. So the sums of the features describe any set of requests, independently of the workers'
costs. With a fleet's coefficients the sums become seconds.

Bands. In rectangular memory every row is padded to the longest row of its batch, so a short row beside a long one takes
the long row's memory and time. Each worker therefore has a band of lengths. The bands divide all lengths so that each
worker's share of all predicted work, running and waiting, is its share of the fleet's speed. A request outside a
worker's band may still join that worker, at a higher price.

Price. A row costs the seconds by which it delays all requests, itself included. A worker has n rows of at most L
tokens; a joiner has p tokens to prefill and r to generate. From then on an iteration takes s(n + 1, max(L, p)) seconds
instead of s(n, L). That delays

- the joiner itself, by its prefill and by r of the longer iterations;
- the n rows beside it, by its prefill and by the time that r iterations take longer, padding to a longer row included;
- all requests that run or wait anywhere, by the worker's time that the joiner takes: its own share of the iterations,
  padded up to the upper edge of the worker's band, and the padding that it causes if it is longer than the band. Rows
  share an iteration's fixed time in proportion to their memory, because memory limits the number of rows. A second of
  a worker delays the others by its share of the fleet's speed, since a slow worker would have served less in it.

The price is linear in 1, p, r and r²/2, except for two products: of r with the tokens by which p exceeds L, and of r
with the tokens by which p + r exceeds the band. So one matrix product prices every request on every worker. Paged
memory has no padding: an iteration reads each row's own tokens, and the joiner's tokens replace the band's edge.
"""

import math
from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats, Ints, cached_tokens
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.request import Request

WorkFeatures = tuple[float, float, float, float]
NO_WORK: WorkFeatures = (0.0, 0.0, 0.0, 0.0)

# Work is summed by lengths in steps of 10 %. Finer steps cut the bands more exactly, but take time in every decision.
# Not tuned.
LENGTH_STEP = math.log(1.1)
LENGTH_STEPS = 200  # the last step begins at 1.7e8 tokens, beyond any context; any number from 170 (1e7 tokens) works
UPPER_EDGES = np.exp(LENGTH_STEP * np.arange(1, LENGTH_STEPS + 1))  # the upper edge of each length step in tokens


def work_features(request: Request) -> WorkFeatures:
    """Return the features of one request that is about to be prefilled."""
    prefill, remaining = request.prefill, request.remaining
    return 1.0, prefill, remaining, cached_tokens(prefill, remaining)


def seconds_per_feature(fleet: FleetArrays) -> Floats:
    """Return the seconds that one unit of each feature takes on the fleet's mean worker, (features,).

    Rows share an iteration's fixed time in proportion to their memory, since memory limits the number of rows.
    """
    cached_token_s = fleet.d1 + fleet.d4 / fleet.shared_tokens
    return np.array([fleet.p2.mean(), fleet.p1.mean(), fleet.d2.mean(), cached_token_s.mean()])


class Backlog:
    """The work of the waiting requests: their summed features, in total and by the final length of the requests."""

    def __init__(self) -> None:
        self._by_length = np.zeros((LENGTH_STEPS, 4))
        self._total = NO_WORK

    def add(self, request: Request) -> None:
        """Add the features of a request."""
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Subtract the features of a request."""
        self._count(request, -1)

    def total(self) -> WorkFeatures:
        """Return the summed features of all waiting requests."""
        return self._total

    def work_s(self, fleet: FleetArrays) -> Floats:
        """Return the seconds of work for the fleet's mean worker, (length steps,)."""
        return np.asarray(self._by_length @ seconds_per_feature(fleet), np.float64)

    def _count(self, request: Request, sign: int) -> None:
        """Add or subtract a request's features; these are multiples of 0.5, so that the sums always stay exact."""
        rows, prefill, tokens, cached = (sign * feature for feature in work_features(request))
        self._by_length[_length_step(request)] += rows, prefill, tokens, cached
        total = self._total
        self._total = total[0] + rows, total[1] + prefill, total[2] + tokens, total[3] + cached


def _length_step(request: Request) -> int:
    return min(LENGTH_STEPS - 1, int(math.log(request.prefill + request.remaining) / LENGTH_STEP))


def work_by_length(features: Floats, work_s: Floats) -> Floats:
    """Return the work of requests, given by features (requests, 4) and seconds, summed by length: (length steps,)."""
    steps = np.minimum(LENGTH_STEPS - 1, (np.log(features[:, 1] + features[:, 2]) / LENGTH_STEP).astype(np.int64))
    return np.asarray(np.bincount(steps, work_s, LENGTH_STEPS), np.float64)


def upper_edges(fleet: FleetArrays, waiting_s: Floats) -> Floats:
    """Return the upper edge of each worker's band in tokens, (workers,); `waiting_s` comes from `Backlog.work_s`.

    Workers get bands in the order of the mean length of their rows, so that each continues with similar lengths.
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
    share = np.cumsum(fleet.speed_share()[order]) * (1 - 1e-9)  # rounding must not push the last share beyond 1
    edges = np.empty(len(fleet))
    edges[order] = UPPER_EDGES[np.minimum(LENGTH_STEPS - 1, np.searchsorted(cumulated_s, share * cumulated_s[-1]))]
    return edges


@dataclass(frozen=True, slots=True)
class DelayedRequests:
    """The other requests of the fleet that a joiner delays, and the band edges."""

    per_worker: Floats  # (workers,): the requests of the whole fleet that run or wait, divided by the workers' speeds
    band_edges: Floats  # (workers,): the upper edge of each worker's band in tokens


def delay_coefficients(fleet: FleetArrays, delayed: DelayedRequests, workers: Ints) -> Floats:
    """Return the delay that a joiner without padding causes, (workers, 5), for a unit of each of `delay_features`."""
    size, longest, paged = fleet.size[workers], fleet.read_length[workers], fleet.rules.paged[workers]
    edge = np.where(paged, 0.0, delayed.band_edges[workers])
    p1, p2, p3, p4 = (p[workers] for p in (fleet.p1, fleet.p2, fleet.p3, fleet.p4))
    d1, d2, d3, d4 = (d[workers] for d in (fleet.d1, fleet.d2, fleet.d3, fleet.d4))
    elsewhere, with_joiner = delayed.per_worker[workers], size + 1
    token_s = elsewhere * (d1 + d4 / fleet.shared_tokens[workers])
    reads = np.where(paged, size, size + with_joiner) * longest
    first = fleet.joiners[workers] == 0  # later joiners share the fixed time of the first one's prefill
    return np.stack(
        [
            with_joiner * (p2 + first * p4) + elsewhere * p2,
            with_joiner * (p1 + first * p3) + elsewhere * p1,
            d4 + d3 * longest + (size + with_joiner) * d2 + d1 * reads + elsewhere * d2 + token_s * edge,
            (size + with_joiner) * d1 + np.where(paged, token_s, -token_s),
            np.where(paged, with_joiner * d1 + token_s, 0.0),
        ],
        axis=1,
    )


def delay_features(prefill: Floats, remaining: Floats) -> Floats:
    """Return 1, p, r, r²/2 and r · p of each request, (5, requests)."""
    return np.stack([np.ones_like(prefill), prefill, remaining, remaining**2 / 2, remaining * prefill])


def delay_s(fleet: FleetArrays, delayed: DelayedRequests, workers: Ints, prefill: Floats, remaining: Floats) -> Floats:
    """Return the seconds by which each request would delay all requests on each worker, (workers, requests)."""
    delays = delay_coefficients(fleet, delayed, workers) @ delay_features(prefill, remaining)
    paged = fleet.rules.paged[workers]
    if paged.all():
        return np.asarray(delays, np.float64)
    size, longest, edge = fleet.size[workers], fleet.read_length[workers], delayed.band_edges[workers]
    d1, d3, with_joiner = fleet.d1[workers], fleet.d3[workers], size + 1
    token_s = delayed.per_worker[workers] * (d1 + fleet.d4[workers] / fleet.shared_tokens[workers])
    beyond_longest = np.maximum(0.0, prefill - longest[:, None])
    beyond_band = np.maximum(0.0, prefill + remaining - edge[:, None])
    padding_s = with_joiner * (with_joiner * d1 + d3)
    beyond_band *= (token_s * (1 + np.maximum(size, 1)))[:, None]
    padding = remaining * (padding_s[:, None] * beyond_longest + beyond_band)
    return np.asarray(delays + np.where(paged[:, None], 0.0, padding), np.float64)
