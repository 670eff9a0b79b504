"""The waiting requests of one model: the sums of their work, and the arrival of the oldest request."""

import heapq
import math
from collections.abc import Collection
from typing import NamedTuple

from scheduling.request import Request
from scheduling.sharing.background.deadlines import Work

FEW = 64  # entries of requests that are gone stay in the heap until they are more than this; any small number works


class WaitsBehind(NamedTuple):
    """A waiting request, and the work that waited when it arrived."""

    request: Request
    ahead: Work


class ModelQueue:
    """The waiting requests of one model, background requests apart from the others."""

    def __init__(self) -> None:
        self._requests: dict[str, WaitsBehind] = {}
        self._work = {True: Work(), False: Work()}  # the background work (True) and the other work
        self._arrivals: dict[bool, list[tuple[float, str]]] = {True: [], False: []}  # heaps that may hold gone requests

    def add(self, request: Request) -> None:
        """Count a request that begins to wait."""
        self.remove(request.id)
        # as in `fusion`, no work counts as being ahead of a request that comes back unfinished
        ahead = Work() if request.generated else self.work(background=False)
        self._requests[request.id] = WaitsBehind(request, ahead)
        self._work[request.background] = self._work[request.background].plus(request)
        heap = self._arrivals[request.background]
        heapq.heappush(heap, (request.arrived_at, request.id))
        if len(heap) > 2 * len(self._requests) + FEW:
            heap[:] = sorted({entry for entry in heap if entry[1] in self._requests})

    def remove(self, request_id: str) -> bool:
        """Stop counting a request; return False if it does not wait."""
        waited = self._requests.pop(request_id, None)
        if waited is None:
            return False
        request = waited.request
        left = self._work[request.background].plus(request, -1)
        self._work[request.background] = left if left.requests else Work()
        return True

    @property
    def waiting(self) -> Collection[WaitsBehind]:
        """The waiting requests, in the order in which they began to wait."""
        return self._requests.values()

    def work(self, background: bool) -> Work:
        """Return the sums over the requests, with or without background requests."""
        others = self._work[False]
        return others.together(self._work[True]) if background else others

    def oldest_at(self, background: bool) -> float:
        """Return the arrival of the oldest background request, or of the oldest other one; infinity if none waits."""
        heap = self._arrivals[background]
        while heap and heap[0][1] not in self._requests:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf
