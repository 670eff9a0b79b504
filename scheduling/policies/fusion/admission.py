"""Which requests may join which workers: rows and joiner must fit at every instant of their predicted future."""

import numpy as np
from numpy.typing import NDArray

from scheduling.costs import Ints
from scheduling.policies.fusion.fleet_arrays import NEXT, FleetArrays, reserved
from scheduling.policies.fusion.future_memory import peak
from scheduling.policies.fusion.length_buckets import Heads
from scheduling.request import Request

Booleans = NDArray[np.bool_]


def candidate_workers(fleet: FleetArrays, heads: Heads) -> Ints:
    """The workers that may have room: for a request with the least prompt and the least to come of all."""
    count, size = len(fleet), fleet.size + 1
    least = (float(column.min()) for column in (heads.prefill, heads.remaining, heads.remaining_upper))
    prefill, remaining, upper = (np.full(count, value) for value in least)
    peaks = fleet.future.peaks_with(np.arange(count), prefill, reserved(remaining, upper, size))
    at_once = size * (np.maximum(fleet.longest, prefill) + NEXT) <= fleet.capacity
    return np.flatnonzero(at_once & ((peaks <= fleet.capacity) | (fleet.size == 0)))


def fits_now(fleet: FleetArrays, heads: Heads, workers: Ints) -> Booleans:
    """Whether each request would fit on each of these workers if it joined at once, (workers, requests).

    An idle worker takes what it can hold to its end; the largest takes anything whose prompt it can hold.
    """
    size, capacity, longest = (column[workers, None] for column in (fleet.size, fleet.capacity, fleet.longest))
    at_once = (size + 1) * (np.maximum(longest, heads.prefill) + NEXT) <= capacity
    to_the_end = heads.prefill + heads.remaining_upper <= capacity
    return np.asarray(at_once & ((size > 0) | to_the_end | (capacity == fleet.capacity.max())), np.bool_)


def fits(fleet: FleetArrays, heads: Heads, workers: Ints, lines: Ints, places: Ints) -> Booleans:
    """Whether the predicted peak stays within memory, for pairs of one of these workers and a request that fits now."""
    size, capacity = fleet.size[workers][lines], fleet.capacity[workers][lines]
    remaining = reserved(heads.remaining[places], heads.remaining_upper[places], size + 1)
    peaks = fleet.future_of(workers).peaks_with(lines, heads.prefill[places], remaining)
    return np.asarray((peaks <= capacity) | (size == 0), np.bool_)


def fits_one(fleet: FleetArrays, worker: int, request: Request) -> bool:
    """Both of these for one worker and one request."""
    size, capacity = int(fleet.size[worker]), fleet.capacity[worker]
    if not fleet.holds(worker, request.prefill):
        return False
    if not size:
        return bool(request.prefill + request.remaining_upper <= capacity or capacity == fleet.capacity.max())
    remaining = reserved(request.remaining, request.remaining_upper, size + 1)
    cached = np.append(fleet.cached[worker, :size], request.prefill)
    return peak(cached, np.append(fleet.remaining[worker, :size], remaining)) <= float(capacity)


def fits_soonest(fleet: FleetArrays, prefill: float, remaining: float) -> int:
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
