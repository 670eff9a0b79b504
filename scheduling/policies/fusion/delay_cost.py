"""The price of a row on a worker: by how many seconds it delays everyone, itself included.

With n rows of at most L tokens on the worker and a joiner of p tokens with r to come, an iteration grows from s(n, L)
to s(n + 1, max(L, p)). That delays

- itself by its prefill and r of the longer iterations,
- the n rows beside it by its prefill and by what r iterations have become longer, padding to a longer row included,
- all those who run or wait anywhere by the seconds of a worker that it takes away: its own share of the iterations,
  padded up to the band's edge, and what it pads others if it is longer than the band. An iteration's fixed time goes
  by the share of memory, which is what limits the rows that divide it.

All of it is linear in 1, p, r and r²/2, but for two products: of r with what p is beyond L, and with what p + r is
beyond the band. So a matrix product prices every request on every worker.
"""

from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.policies.fusion.fleet_arrays import FleetArrays


@dataclass(frozen=True, slots=True)
class DelayedRequests:
    """Who else is delayed: requests that run or wait for each worker, and the edges of the workers' bands in tokens."""

    per_worker: float
    band_edges: Floats


def delay_s(fleet: FleetArrays, crowd: DelayedRequests, workers: Ints, prefill: Floats, remaining: Floats) -> Floats:
    """Seconds of delay to everyone, (workers, requests)."""
    size, longest, edge = fleet.size[workers], fleet.longest[workers], crowd.band_edges[workers]
    p1, p2, p3, p4 = (p[workers] for p in (fleet.p1, fleet.p2, fleet.p3, fleet.p4))
    d1, d2, d3, d4 = (d[workers] for d in (fleet.d1, fleet.d2, fleet.d3, fleet.d4))
    others, everyone = crowd.per_worker, size + 1
    token_s = others * (d1 + d4 / fleet.capacity[workers])
    first = fleet.joiners[workers] == 0  # else the group's fixed time is spent already
    seconds = np.stack(
        [
            everyone * (p2 + first * p4) + others * p2,
            everyone * (p1 + first * p3) + others * p1,
            d4 + d3 * longest + (size + everyone) * (d2 + d1 * longest) + others * d2 + token_s * edge,
            (size + everyone) * d1 - token_s,
        ],
        axis=1,
    )
    delays = seconds @ np.stack([np.ones_like(prefill), prefill, remaining, remaining**2 / 2])
    beyond_longest = np.maximum(0.0, prefill - longest[:, None])
    beyond_band = np.maximum(0.0, prefill + remaining - edge[:, None])
    padding_s = everyone * (everyone * d1 + d3)
    beyond_band *= (token_s * (1 + np.maximum(size, 1)))[:, None]
    return np.asarray(delays + remaining * (padding_s[:, None] * beyond_longest + beyond_band), np.float64)
