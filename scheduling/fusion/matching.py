"""Which requests go to which workers in one round of a decision: pairs of the smallest keys that fit."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.fusion.admission import fits, fits_now, fits_one
from scheduling.fusion.fleet import Fleet
from scheduling.fusion.lanes import Heads, Lanes, Waiting

TRIED = 8  # of the smallest keys on each worker, before it counts as full
GROWTH = 4  # a round adds at most a quarter to a worker's rows, so that the keys of its beginning still hold


def best_pairs(fleet: Fleet, lanes: Lanes, workers: Ints, key: Floats) -> Iterator[tuple[int, Waiting]]:
    """Workers with requests that fit, smallest key first; each is to join its worker before the next is asked for.

    `key` of (these workers, heads of the lanes) is infinite where a request must not go. The next of a lane is like its
    head, but for its arrival. A worker that has taken all it may, or on which the smallest key fits no more, is left to
    the next round; the pair of the smallest key always comes.
    """
    heads, names = lanes.heads(), lanes.names()
    arrived_at = heads.arrived_at.tolist()  # as of now: the columns follow the lanes
    lines, places = _that_fit(fleet, heads, workers, key)
    pairs = list(zip(key[lines, places].tolist(), lines.tolist(), places.tolist(), strict=True))
    heapify(pairs)
    may_take = np.maximum(1, fleet.size[workers] // GROWTH)
    while pairs:
        least, line, place = heappop(pairs)
        worker, waiting = int(workers[line]), lanes.first(names[place])
        if not waiting or not may_take[line]:
            continue
        its_key = float(key[line, place]) + waiting.request.arrived_at - arrived_at[place]
        if its_key > least:
            heappush(pairs, (its_key, line, place))
            continue
        if fits_one(fleet, worker, waiting.request):
            yield worker, waiting
            may_take[line] -= 1
            heappush(pairs, (its_key, line, place))
        else:
            may_take[line] = 0


def _that_fit(fleet: Fleet, heads: Heads, workers: Ints, key: Floats) -> tuple[Ints, Ints]:
    """The lines and places of the pairs that fit, of the few smallest keys of each worker."""
    key = np.where(fits_now(fleet, heads, workers), key, np.inf)
    tried = _smallest(key)
    lines, places = np.repeat(np.arange(len(workers)), tried.shape[1]), tried.ravel()
    finite = np.isfinite(key[lines, places])
    lines, places = lines[finite], places[finite]
    fit = fits(fleet, heads, workers, lines, places)
    return lines[fit], places[fit]


def _smallest(key: Floats) -> Ints:
    """The places of the smallest keys of each worker."""
    if key.shape[1] <= TRIED:
        return np.broadcast_to(np.arange(key.shape[1]), key.shape)
    return np.argpartition(key, TRIED, axis=1)[:, :TRIED]
