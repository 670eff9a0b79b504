"""Which requests go to which workers in one round of a decision: pairs of the smallest keys that fit."""

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.fusion.admission import fits, fits_now
from scheduling.fusion.fleet import Fleet
from scheduling.fusion.lanes import Heads

TRIED = 8  # of the smallest keys on each worker, before it counts as full


def best_pairs(fleet: Fleet, heads: Heads, key: Floats) -> list[tuple[int, int]]:
    """Workers with a request each, smallest key first; `key` of (workers, requests) is infinite where it must not be.

    A request that another worker without one should rather take is left to the next round; so is nobody else's when
    the rows that it joins have changed. The pair of the smallest key is always among them.
    """
    key = np.where(fits_now(fleet, heads), key, np.inf)
    tried = _smallest(key)
    workers = np.repeat(np.arange(len(fleet)), tried.shape[1])
    open_pairs = np.isfinite(key[workers, tried.ravel()])
    workers, places = workers[open_pairs], tried.ravel()[open_pairs]
    too_much = ~fits(fleet, heads, workers, places)
    key[workers[too_much], places[too_much]] = np.inf
    fit = np.full_like(key, np.inf)
    fit[workers, places] = key[workers, places]
    chosen = fit.argmin(axis=1)
    smallest = fit[np.arange(len(fleet)), chosen]
    left = np.ones(len(fleet), np.bool_)
    pairs: list[tuple[int, int]] = []
    for worker in np.argsort(smallest, kind="stable").tolist():
        place = int(chosen[worker])
        if not np.isfinite(smallest[worker]):
            break
        if not pairs or smallest[worker] <= key[left, place].min():
            pairs.append((worker, place))
            left[worker] = False
    return pairs


def _smallest(key: Floats) -> Ints:
    """The places of the smallest keys of each worker."""
    if key.shape[1] <= TRIED:
        return np.broadcast_to(np.arange(key.shape[1]), key.shape)
    return np.argpartition(key, TRIED, axis=1)[:, :TRIED]
