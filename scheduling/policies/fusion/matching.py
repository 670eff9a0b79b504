"""Which requests go to which workers in one round of a decision: pairs of the smallest keys that fit."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.policies.fusion.admission import fits, fits_now, fits_one
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import Heads, LengthBuckets, WaitingRequest

TRIED = 8  # of the smallest keys on each worker, before it counts as full
WORKERS_TRIED = 256  # in one round, those of the smallest keys
GROWTH = 4  # a round adds at most a quarter to a worker's rows, so that the keys of its beginning still hold


def best_pairs(
    fleet: FleetArrays, lanes: LengthBuckets, workers: Ints, key: Floats
) -> Iterator[tuple[int, WaitingRequest]]:
    """Workers with requests that fit, smallest key first; each is to join its worker before the next is asked for.

    `key` of (these workers, heads of the lanes) is infinite where a request must not go. The next of a lane is like its
    head, but for its arrival. A worker that has taken all it may, or on which the smallest key fits no more, is left to
    the next round; the pair of the smallest key always comes.
    """
    heads, names = lanes.heads(), lanes.names()
    arrived_at = heads.arrived_at.tolist()  # as of now: the columns follow the lanes
    if len(workers) > WORKERS_TRIED:
        tried = np.argpartition(key.min(axis=1), WORKERS_TRIED)[:WORKERS_TRIED]
        workers, key = workers[tried], key[tried]
    may_take = np.maximum(1, fleet.size[workers] // GROWTH).tolist()
    choices = _that_fit(fleet, heads, workers, key)
    turns = [(lines[-1][0], place) for place, lines in choices.items()]
    heapify(turns)
    while turns:
        least, place = heappop(turns)
        waiting, lines = lanes.first(names[place]), choices[place]
        while lines and not may_take[lines[-1][1]]:
            lines.pop()
        if not waiting or not lines:
            continue
        head_key, line = lines[-1]
        its_key = head_key + waiting.request.arrived_at - arrived_at[place]
        if its_key <= least:
            if fits_one(fleet, int(workers[line]), waiting.request):
                yield int(workers[line]), waiting
                may_take[line] -= 1
            else:
                may_take[line] = 0
        heappush(turns, (its_key, place))


def _that_fit(fleet: FleetArrays, heads: Heads, workers: Ints, key: Floats) -> dict[int, list[tuple[float, int]]]:
    """By place of a request, the keys and lines of the workers that it fits, smallest last, of the few smallest keys
    of each worker."""
    key = np.where(fits_now(fleet, heads, workers), key, np.inf)
    tried = _smallest(key)
    lines, places = np.repeat(np.arange(len(workers)), tried.shape[1]), tried.ravel()
    finite = np.isfinite(key[lines, places])
    lines, places = lines[finite], places[finite]
    fit = fits(fleet, heads, workers, lines, places)
    lines, places = lines[fit], places[fit]
    keys = key[lines, places]
    choices: dict[int, list[tuple[float, int]]] = {}
    for pair in np.argsort(keys, kind="stable")[::-1].tolist():
        choices.setdefault(int(places[pair]), []).append((float(keys[pair]), int(lines[pair])))
    return choices


def _smallest(key: Floats) -> Ints:
    """The places of the smallest keys of each worker."""
    if key.shape[1] <= TRIED:
        return np.broadcast_to(np.arange(key.shape[1]), key.shape)
    return np.argpartition(key, TRIED, axis=1)[:, :TRIED]
