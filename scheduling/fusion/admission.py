"""Which requests may join which workers: rows and joiner must fit at every instant of their predicted future."""

import numpy as np

from scheduling.costs import Ints
from scheduling.fusion.fleet import NEXT, Fleet, reserved
from scheduling.fusion.lanes import Heads


def fits_now(fleet: Fleet, heads: Heads) -> "np.ndarray[tuple[int, int], np.dtype[np.bool_]]":
    """Whether each request would fit on each worker if it joined at once, (workers, requests).

    An idle worker takes what it can hold to its end; the largest takes anything whose prompt it can hold.
    """
    size, capacity = fleet.size[:, None], fleet.capacity[:, None]
    at_once = (size + 1) * (np.maximum(fleet.longest[:, None], heads.prefill) + NEXT) <= capacity
    to_the_end = heads.prefill + heads.remaining_upper <= capacity
    return np.asarray(at_once & ((size > 0) | to_the_end | (capacity == fleet.capacity.max())), np.bool_)


def fits(fleet: Fleet, heads: Heads, workers: Ints, places: Ints) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether the predicted peak stays within memory, for pairs of a worker and a request that fits now."""
    remaining = reserved(heads.remaining[places], heads.remaining_upper[places], fleet.size[workers] + 1)
    peaks = fleet.future.peaks_with(workers, heads.prefill[places], remaining)
    return np.asarray((peaks <= fleet.capacity[workers]) | (fleet.size[workers] == 0), np.bool_)


def fits_soonest(fleet: Fleet, prefill: float, remaining: float) -> int:
    """The worker whose rows must run least until this request fits beside those that are left."""
    future = fleet.future
    rows = future.remaining.shape[1]
    ends = np.maximum.accumulate(future.longest + future.remaining, axis=1)
    beside = np.arange(2, rows + 2) * np.maximum(ends, prefill + remaining) <= fleet.capacity[:, None]
    beside &= future.remaining > -np.inf
    left = np.count_nonzero(beside, axis=1)  # the sizes grow, so those that fit come first
    padded = np.pad(future.remaining, ((0, 0), (0, 1)), constant_values=-np.inf)
    iterations = np.maximum(0.0, padded[np.arange(len(fleet)), left])
    too_small = fleet.capacity < min(prefill + remaining, fleet.capacity.max())
    return int(np.argmin(np.where(too_small, np.inf, iterations)))
