"""The price of a row on a worker: by how many seconds it delays all requests, itself included.

A worker has n rows of at most L tokens; a joiner has p tokens to prefill and r to generate. From then on an iteration
takes s(n + 1, max(L, p)) seconds instead of s(n, L). That delays

- the joiner itself, by its prefill and by r of the longer iterations;
- the n rows beside it, by its prefill and by what r iterations have become longer, padding to a longer row included;
- all requests that run or wait anywhere, by the worker's time that the joiner takes: its own share of the iterations,
  padded up to the upper edge of the worker's band, and the padding that it causes if it is longer than the band. The
  fixed time of an iteration is charged by the share of memory, since memory limits the rows that it is divided among.

All of this is linear in 1, p, r and r²/2, except for two products: of r with the tokens by which p exceeds L, and of r
with the tokens by which p + r exceeds the band. So one matrix product prices every request on every worker.

Paged memory pads nothing: an iteration reads each row's own tokens, and a joiner takes its own in place of the band's.
"""

from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.policies.fusion.fleet_arrays import FleetArrays


@dataclass(frozen=True, slots=True)
class DelayedRequests:
    """The requests elsewhere that a joiner delays, and what their delay depends on."""

    per_worker: float  # requests of the whole fleet that run or wait, divided by its workers
    band_edges: Floats  # (workers,): the upper edge of each worker's band in tokens


def delay_s(fleet: FleetArrays, delayed: DelayedRequests, workers: Ints, prefill: Floats, remaining: Floats) -> Floats:
    """Seconds of delay to all requests, (workers, requests), if each request joined each of these workers."""
    size, longest, paged = fleet.size[workers], fleet.read_length[workers], fleet.paging.paged[workers]
    edge = np.where(paged, 0.0, delayed.band_edges[workers])
    p1, p2, p3, p4 = (p[workers] for p in (fleet.p1, fleet.p2, fleet.p3, fleet.p4))
    d1, d2, d3, d4 = (d[workers] for d in (fleet.d1, fleet.d2, fleet.d3, fleet.d4))
    elsewhere, with_joiner = delayed.per_worker, size + 1
    token_s = elsewhere * (d1 + d4 / fleet.shared_tokens[workers])
    reads = np.where(paged, size, size + with_joiner) * longest
    first = fleet.joiners[workers] == 0  # later joiners share the fixed time of the first one's prefill
    coefficients = np.stack(
        [
            with_joiner * (p2 + first * p4) + elsewhere * p2,
            with_joiner * (p1 + first * p3) + elsewhere * p1,
            d4 + d3 * longest + (size + with_joiner) * d2 + d1 * reads + elsewhere * d2 + token_s * edge,
            (size + with_joiner) * d1 + np.where(paged, token_s, -token_s),
        ],
        axis=1,
    )
    delays = coefficients @ np.stack([np.ones_like(prefill), prefill, remaining, remaining**2 / 2])
    if paged.all():
        return np.asarray(delays + (with_joiner * d1 + token_s)[:, None] * (remaining * prefill), np.float64)
    beyond_longest = np.maximum(0.0, prefill - longest[:, None])
    beyond_band = np.maximum(0.0, prefill + remaining - edge[:, None])
    padding_s = with_joiner * (with_joiner * d1 + d3)
    beyond_band *= (token_s * (1 + np.maximum(size, 1)))[:, None]
    padding = remaining * (padding_s[:, None] * beyond_longest + beyond_band)
    own = (with_joiner * d1 + token_s)[:, None] * (remaining * prefill)
    return np.asarray(delays + np.where(paged[:, None], own, padding), np.float64)
