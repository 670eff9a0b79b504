"""A worker reserved for a request that is due and fits nowhere, so that shorter ones do not overtake it for ever."""

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import LengthBuckets
from scheduling.request import Request


class WorkerReservation:
    """At most one reserved worker at a time, and the request that it is reserved for; true while there is one."""

    def __init__(self) -> None:
        self._worker, self._request_id = "", ""

    def __bool__(self) -> bool:
        return bool(self._request_id)

    @property
    def request_id(self) -> str:
        """The request that the worker is reserved for; empty if no worker is reserved."""
        return self._request_id

    def reserve(self, fleet: FleetArrays, request: Request) -> None:
        """Reserve the worker on which this request will fit soonest."""
        worker = fits_soonest(fleet, request.prefill, request.remaining_upper)
        self._worker, self._request_id = fleet.workers[worker].name, request.id

    def release(self) -> None:
        """Reserve no worker any more."""
        self._worker = self._request_id = ""

    def worker_in(self, fleet: FleetArrays) -> bool:
        """Whether the reserved worker is in the fleet."""
        return self._worker in fleet.names

    def exclude_others(self, fleet: FleetArrays, workers: Ints, buckets: LengthBuckets, key: Floats) -> None:
        """Make `key` of (these workers, buckets) infinite, in place, where others would join the reserved worker."""
        if self and self.worker_in(fleet):
            column = buckets.column_of(self._request_id)
            others = np.arange(key.shape[1]) != (-1 if column is None else column)
            key[np.ix_(workers == fleet.names.index(self._worker), others)] = np.inf


def fits_soonest(fleet: FleetArrays, prefill: float, remaining: float) -> int:
    """The worker that must run for the fewest iterations until this request fits beside the rows that are then left.

    Only workers that could hold the request alone are considered, or the largest if none could.
    """
    future = fleet.future
    rows = future.remaining.shape[1]
    final_lengths = np.maximum.accumulate(future.longest + future.remaining, axis=1)
    left = np.arange(1, rows + 1)
    tokens = (left + 1) * np.maximum(final_lengths, prefill + remaining)
    if fleet.paging.paged.any():
        overhead = fleet.paging.overhead[:, None]
        own = np.maximum.accumulate(future.total + left * (future.remaining + overhead), axis=1)
        tokens = np.where(fleet.paging.paged[:, None], own + prefill + remaining + overhead, tokens)
    fits_beside = (tokens <= fleet.capacity[:, None]) & (left < fleet.most_rows[:, None])
    fits_beside &= future.remaining > -np.inf
    rows_left = np.count_nonzero(fits_beside, axis=1)  # memory grows with the rows left, so those that fit come first
    padded = np.pad(future.remaining, ((0, 0), (0, 1)), constant_values=-np.inf)
    iterations = np.maximum(0.0, padded[np.arange(len(fleet)), rows_left])
    too_small = fleet.capacity < min(prefill + remaining, fleet.capacity.max())
    return int(np.argmin(np.where(too_small, np.inf, iterations)))
