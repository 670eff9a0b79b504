"""A worker kept free for a request that is due and fits nowhere, so that shorter ones do not pass it for ever."""

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.policies.fusion.admission import fits_soonest
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import LengthBuckets
from scheduling.request import Request


class WorkerReservation:
    """At most one worker at a time, and the request that it is kept free for."""

    def __init__(self) -> None:
        self._worker, self._request_id = "", ""

    def __bool__(self) -> bool:
        return bool(self._request_id)

    @property
    def request_id(self) -> str:
        """Whom a worker is kept free for; empty if none is."""
        return self._request_id

    def keep(self, fleet: FleetArrays, request: Request) -> None:
        """Keep free the worker where this request will fit soonest."""
        worker = fits_soonest(fleet, request.prefill, request.remaining_upper)
        self._worker, self._request_id = fleet.workers[worker].name, request.id

    def forget(self) -> None:
        """The request waits no more, or the worker is gone."""
        self._worker = self._request_id = ""

    def among(self, fleet: FleetArrays) -> bool:
        """Whether the worker is still there."""
        return self._worker in fleet.names

    def close(self, fleet: FleetArrays, workers: Ints, lanes: LengthBuckets, key: Floats) -> None:
        """Nobody else may join that worker: `key` of (these workers, heads) becomes infinite there."""
        if self and self.among(fleet):
            place = lanes.place_of(self._request_id)
            others = np.arange(key.shape[1]) != (-1 if place is None else place)
            key[np.ix_(workers == fleet.names.index(self._worker), others)] = np.inf
