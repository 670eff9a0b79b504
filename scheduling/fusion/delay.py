"""The price of a row on a worker: by how many seconds it delays everyone, itself included.

With n rows of at most L tokens on the worker and a joiner of p tokens with r to come, an iteration grows from s(n, L)
to s(n + 1, max(L, p)). That delays

- itself by its prefill and r of the longer iterations,
- the n rows beside it by its prefill and by what r iterations have become longer, padding to a longer row included,
- all those who run or wait anywhere by the seconds of a worker that it takes away: its own share of the iterations,
  padded up to the band's edge, and what it pads others if it is longer than the band. An iteration's fixed time goes
  by the share of memory, which is what limits the rows that divide it.
"""

from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats
from scheduling.fusion.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who else is delayed: requests that run or wait for each worker, and the edges of the workers' bands in tokens."""

    per_worker: float
    band_edges: Floats


def delay_s(fleet: Fleet, crowd: Crowd, prefill: Floats, remaining: Floats) -> Floats:
    """Seconds of delay to everyone, (workers, requests)."""
    size, longest = fleet.size[:, None].astype(np.float64), fleet.longest[:, None]
    d1, d2, d3, d4 = (d[:, None] for d in (fleet.d1, fleet.d2, fleet.d3, fleet.d4))
    p1, p2, p3, p4 = (p[:, None] for p in (fleet.p1, fleet.p2, fleet.p3, fleet.p4))
    joins = fleet.joiners[:, None] > 0  # the group's fixed time is spent already
    prefill_s = p1 * prefill + p2 + np.where(joins, 0.0, p3 * prefill + p4)
    grown = np.maximum(longest, prefill)
    row_s = d2 + d1 * (grown + remaining / 2)
    padding_s = (size * d1 + d3) * (grown - longest)
    step_s = d4 + d3 * longest + size * (d2 + d1 * (longest + remaining / 2)) + row_s + padding_s
    alone_s = prefill_s + remaining * step_s
    beside_s = size * (prefill_s + remaining * (row_s + padding_s))
    final, edge = prefill + remaining, crowd.band_edges[:, None]
    token_s = d1 + d4 / fleet.capacity[:, None]
    taken_s = p1 * prefill + p2 + remaining * (d2 + token_s * (np.maximum(final, edge) - remaining / 2))
    pads_s = remaining * token_s * np.maximum(size, 1) * np.maximum(0.0, final - edge)
    return np.asarray(alone_s + beside_s + crowd.per_worker * (taken_s + pads_s), np.float64)
