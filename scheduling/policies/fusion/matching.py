"""Matches one tenant's requests with workers, in one round of a decision.

Admission: a request may join a worker that accepts another row if all rows fit its memory at the join, and if the
predicted peak of their memory (see `FutureMemory`) stays within the worker's limit (`peak_limits`). Matching: of the
admitted pairs of worker and request, the pair with the smallest key joins first. Reservation: a request that is due and
fits nowhere reserves a worker that others may join only if they should end before it fits (backfilling), so that
shorter requests cannot overtake it for ever.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from scheduling.costs import Floats, Ints
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import BucketHeads, LengthBuckets, WaitingRequest
from scheduling.policies.fusion.priority_key import URGENT_OFFSET
from scheduling.request import Request


class WorkerReservation:
    """The reserved worker and the request that it is reserved for; false while no worker is reserved."""

    def __init__(self) -> None:
        self._worker, self._request_id = "", ""
        self._fits_at = 0.0  # when the request should fit, as it was predicted when the worker was reserved

    def __bool__(self) -> bool:
        return bool(self._request_id)

    @property
    def request_id(self) -> str:
        """Return the id of the request for which a worker is reserved; empty if no worker is reserved."""
        return self._request_id

    def reserve(self, fleet: FleetArrays, request: Request, now: float) -> None:
        """Reserve the worker on which this request will fit soonest."""
        worker, iterations = fits_soonest(fleet, request.prefill, request.remaining_upper)
        self._worker, self._request_id = fleet.workers[worker].name, request.id
        self._fits_at = now + iterations * float(fleet.step_s()[worker])

    def release(self) -> None:
        """End the reservation."""
        self._worker = self._request_id = ""

    def worker_in(self, fleet: FleetArrays) -> bool:
        """Return whether the reserved worker is in the fleet."""
        return self._worker in fleet.names

    def exclude_others(
        self, fleet: FleetArrays, workers: Ints, buckets: LengthBuckets, key: Floats, now: float
    ) -> None:
        """Set `key`, (these workers, buckets), to infinity where requests would keep the reserved worker full.

        Requests that should end before the instant at which the one that it is reserved for was to fit may join it.
        """
        if self and self.worker_in(fleet):
            worker = fleet.names.index(self._worker)
            others = now + buckets.heads().remaining_upper * fleet.step_s()[worker] > self._fits_at
            if (own := buckets.head_column(self._request_id)) is not None:
                others[own] = False
            key[np.ix_(workers == worker, others)] = np.inf


def fits_soonest(fleet: FleetArrays, prefill: float, remaining: float) -> tuple[int, float]:
    """Return the worker on which this request fits soonest, beside the rows that are then left, and the iterations.

    Only workers that can hold the request alone are considered, or the largest ones if none can.
    """
    future = fleet.future
    rows = future.remaining.shape[1]
    final_lengths = np.maximum.accumulate(future.longest + future.remaining, axis=1)
    left = np.arange(1, rows + 1)
    tokens, rules = (left + 1) * np.maximum(final_lengths, prefill + remaining), fleet.rules
    if rules.paged.any():
        overhead = rules.overhead[:, None]
        own = np.maximum.accumulate(future.total + left * (future.remaining + overhead), axis=1)
        tokens = np.where(rules.paged[:, None], own + prefill + remaining + overhead, tokens)
    held = rules.held(tokens, left + 1)
    fits_beside = (held <= fleet.capacity[:, None]) & (left < fleet.most_rows[:, None])
    fits_beside &= future.remaining > -np.inf
    rows_left = np.count_nonzero(fits_beside, axis=1)  # more rows need more memory: the counts that fit come first
    padded = np.pad(future.remaining, ((0, 0), (0, 1)), constant_values=-np.inf)
    iterations = np.maximum(0.0, padded[np.arange(len(fleet)), rows_left])
    alone = rules.held(np.full(len(fleet), prefill + remaining))
    too_small = fleet.capacity < np.minimum(alone, fleet.capacity.max())
    worker = int(np.argmin(np.where(too_small, np.inf, iterations)))
    return worker, float(iterations[worker])


# KEYS_TRIED and WORKERS_TRIED bound the time of a round; smaller values give worse pairs. ROWS_PER_JOINER lets one
# round make many joins by the keys computed at its start. Chosen for the time of a decision
# (docs/results/control-plane.md), not tuned further.
KEYS_TRIED = 8  # a round tries this many of each worker's smallest keys before the worker counts as full
WORKERS_TRIED = 256  # a round tries this many workers, those with the smallest keys
FIRST_KEY = URGENT_OFFSET / 2  # smaller keys belong to requests that are due or urgent
ROWS_PER_JOINER = 4  # a round adds at most a quarter to a worker's rows, so that the keys stay about right

Booleans = NDArray[np.bool_]
Join = Callable[[int, WaitingRequest], bool]
"""Carries out one join: removes the request from the buckets and adds it to the rows of that worker (an index into the
fleet). Returns whether the round may go on."""
OwnKey = Callable[[WaitingRequest], float]
"""Returns the key of a bucket's first request if it is due or urgent, otherwise infinity."""


def candidate_workers(fleet: FleetArrays, heads: BucketHeads) -> Ints:
    """Return the workers that could admit a request with the fewest prefill and the fewest remaining tokens of all."""
    count = len(fleet)
    prefill, remaining = (np.full(count, float(column.min())) for column in (heads.prefill, heads.remaining))
    at_once = np.flatnonzero(fleet.fits_beside(np.arange(count), prefill[:, None])[:, 0])
    peaks = fleet.future.peaks_with(at_once, prefill[at_once], remaining[at_once])
    return np.asarray(at_once[(fleet.size[at_once] == 0) | (peaks <= fleet.most_peak[at_once])], np.int64)


def join_best_pairs(
    fleet: FleetArrays, buckets: LengthBuckets, workers: Ints, key: Floats, own_key: OwnKey, join: Join
) -> bool:
    """Let requests join workers, the smallest key first, each by a call of `join`; return whether any joined.

    `key`, (these workers, buckets), belongs to the first requests; an infinite one forbids the join. A later request of
    a bucket has that key plus the difference of their arrivals; but if the first is due or urgent, it has its
    `own_key`, and waits for the next round if that is infinite. A worker takes one joiner for every ROWS_PER_JOINER of
    its rows, at least one, and none after a request that it does not admit. `join` returns False to end the round after
    this join. Only KEYS_TRIED keys of each of WORKERS_TRIED workers are tried, in each case the smallest ones.
    """
    bucket_keys = buckets.bucket_keys()
    arrived_at = buckets.heads().arrived_at.tolist()  # a copy, because heads change with every join
    if len(workers) > WORKERS_TRIED:
        tried = np.argpartition(key.min(axis=1), WORKERS_TRIED)[:WORKERS_TRIED]
        workers, key = workers[tried], key[tried]
    may_take = np.maximum(1, fleet.size[workers] // ROWS_PER_JOINER).tolist()
    choices = _admitted_pairs(fleet, buckets.heads(), workers, key)
    turns = [(pairs[-1][0], column) for column, pairs in choices.items()]
    heapify(turns)
    any_joined = False
    while turns:
        least, column = heappop(turns)
        waiting, pairs = buckets.first(bucket_keys[column]), choices[column]
        while pairs and not may_take[pairs[-1][1]]:
            pairs.pop()
        if not waiting or not pairs:
            continue
        head_key, candidate = pairs[-1]
        request_key = head_key + waiting.request.arrived_at - arrived_at[column]
        if head_key < FIRST_KEY and (request_key := own_key(waiting)) == np.inf:
            continue
        if request_key <= least:  # with a larger key, another bucket's may be smaller
            worker = int(workers[candidate])
            if not admits(fleet, worker, waiting.request):
                may_take[candidate] = 0
            elif join(worker, waiting):
                any_joined = True
                may_take[candidate] -= 1
            else:
                return True
        heappush(turns, (request_key, column))
    return any_joined


def _admitted_pairs(
    fleet: FleetArrays, heads: BucketHeads, workers: Ints, key: Floats
) -> dict[int, list[tuple[float, int]]]:
    """Return for each column of `heads` (key, index into `workers`) of the workers that admit it, smallest key last.

    Only the KEYS_TRIED smallest keys of each worker are tried.
    """
    key = np.where(fits_now(fleet, heads, workers), key, np.inf)
    tried = _smallest(key)
    candidates, columns = np.repeat(np.arange(len(workers)), tried.shape[1]), tried.ravel()
    finite = np.isfinite(key[candidates, columns])
    candidates, columns = candidates[finite], columns[finite]
    fit = fits_to_the_end(fleet, heads, workers, candidates, columns)
    candidates, columns = candidates[fit], columns[fit]
    keys = key[candidates, columns]
    choices: dict[int, list[tuple[float, int]]] = {}
    for pair in np.argsort(keys, kind="stable")[::-1].tolist():
        choices.setdefault(int(columns[pair]), []).append((float(keys[pair]), int(candidates[pair])))
    return choices


def _smallest(key: Floats) -> Ints:
    """Return the columns of the KEYS_TRIED smallest keys of each worker."""
    if key.shape[1] <= KEYS_TRIED:
        return np.broadcast_to(np.arange(key.shape[1]), key.shape)
    return np.argpartition(key, KEYS_TRIED, axis=1)[:, :KEYS_TRIED]


def fits_now(fleet: FleetArrays, heads: BucketHeads, workers: Ints) -> Booleans:
    """Return whether each head fits on each of these workers when it joins, (workers, buckets).

    A worker without rows takes only requests that it can hold to their ends; but the largest worker takes every request
    whose prompt it can hold.
    """
    size, capacity = fleet.size[workers, None], fleet.capacity[workers, None]
    at_once = fleet.fits_beside(workers, heads.prefill[None, :])
    final = np.broadcast_to(heads.prefill + heads.remaining_upper, at_once.shape)
    to_the_end = fleet.rules[workers].held(final) <= capacity
    return np.asarray(at_once & ((size > 0) | to_the_end | (capacity == fleet.capacity.max())), np.bool_)


def fits_to_the_end(fleet: FleetArrays, heads: BucketHeads, workers: Ints, candidates: Ints, columns: Ints) -> Booleans:
    """Return whether memory holds the request alone, and the predicted peak stays within its limit, (pairs,).

    A pair is an index into `workers` and a column of `heads` and fits now; an empty worker always holds such a request.
    """
    joined = workers[candidates]
    prefill, remaining = heads.prefill[columns], heads.remaining[columns]
    alone = fleet.rules[joined].held(prefill + remaining) <= fleet.capacity[joined]
    peaks = fleet.future.peaks_with(joined, prefill, remaining)
    return np.asarray((alone & (peaks <= fleet.most_peak[joined])) | (fleet.size[joined] == 0), np.bool_)


def admits(fleet: FleetArrays, worker: int, request: Request) -> bool:
    """Return whether `fits_now` and `fits_to_the_end` hold for one request and one worker, with its joiners so far."""
    size, capacity = int(fleet.size[worker]), fleet.capacity[worker]
    if not fleet.fits_one_more(worker, request.prefill):
        return False
    if not size:
        held = fleet.workers[worker].memory.held(request.prefill + request.remaining_upper)
        return bool(held <= capacity or capacity == fleet.capacity.max())
    if fleet.workers[worker].memory.held(request.prefill + request.remaining) > capacity:
        return False
    return fleet.peak_with(worker, request.prefill, request.remaining) <= float(fleet.most_peak[worker])
