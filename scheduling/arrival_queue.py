"""Queues in order of arrival or of another key, one for all workers or one each; requests can be removed by id."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from scheduling.request import Request

Entry = TypeVar("Entry", bound=tuple[Any, ...])


def ascending(heap: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries of a heap in ascending order without changing it; the first k take O(k log k)."""
    candidates = [(heap[0], 0)] if heap else []
    while candidates:
        entry, place = heapq.heappop(candidates)
        yield entry
        for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
            heapq.heappush(candidates, (heap[child], child))


def by_arrival(request: Request) -> tuple[float, ...]:
    """Return the sort key of first come, first served."""
    return (request.arrived_at,)


class ArrivalQueue:
    """Requests in order of (key, id), by default of arrival; a request that returns keeps its place by arrival."""

    def __init__(self, key: Callable[[Request], tuple[float, ...]] = by_arrival) -> None:
        self._key = key
        self._waiting: dict[str, Request] = {}
        # entries of discarded requests stay until they come first
        self._heap: list[tuple[tuple[float, ...], str]] = []

    def sort_by(self, key: Callable[[Request], tuple[float, ...]]) -> None:
        """Order the requests by this key from now on; takes O(n) if it is another one."""
        if key is not self._key:
            self._key = key
            self._heap = [(key(request), request.id) for request in self._waiting.values()]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests in order; the queue must not change meanwhile. The first k take O(k log k)."""
        last = None
        for entry in ascending(self._heap):
            # a request that was discarded and came back has two entries
            if entry != last and self._is_valid(entry):
                last = entry
                yield self._waiting[entry[1]]

    def __getitem__(self, request_id: str) -> Request:
        return self._waiting[request_id]

    def add(self, request: Request) -> None:
        """Add a request."""
        self._waiting[request.id] = request
        heapq.heappush(self._heap, (self._key(request), request.id))

    def discard(self, request_id: str) -> bool:
        """Remove a request; return False if it does not wait here."""
        return self._waiting.pop(request_id, None) is not None

    def take(self, most: int) -> tuple[Request, ...]:
        """Remove and return the earliest requests, at most `most`."""
        taken: list[Request] = []
        while len(taken) < most and (request := self.peek()):
            heapq.heappop(self._heap)
            taken.append(self._waiting.pop(request.id))
        return tuple(taken)

    def peek(self) -> Request | None:
        """Return the earliest request, or None if the queue is empty."""
        while self._heap and not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][1]] if self._heap else None

    def _is_valid(self, entry: tuple[tuple[float, ...], str]) -> bool:
        """Return whether the entry is of a request as it waits now, not as it was before it was removed."""
        request = self._waiting.get(entry[1])
        return request is not None and self._key(request) == entry[0]


class WorkerQueues:
    """The queue or queues from which workers take requests: one for all, or with `round_robin` one for each.

    Requests of a worker that left are dealt out again.
    """

    def __init__(self, round_robin: bool) -> None:
        self._round_robin = round_robin
        self._shared = ArrivalQueue()  # with `round_robin`: requests not dealt out yet
        self._queues: dict[str, ArrivalQueue] = {}
        self._dealt = 0
        self.add = self._shared.add

    def __iter__(self) -> Iterator[Request]:
        """Yield all waiting requests, in order of arrival."""
        return heapq.merge(self._shared, *self._queues.values(), key=lambda request: (request.arrived_at, request.id))

    def __len__(self) -> int:
        return len(self._shared) + sum(map(len, self._queues.values()))

    def discard(self, request_id: str) -> bool:
        """Remove a request; return False if it does not wait here."""
        return any(queue.discard(request_id) for queue in (self._shared, *self._queues.values()))

    def set_workers(self, workers: Sequence[str]) -> None:
        """Set the live workers; deal out new requests and those of workers that have gone."""
        if not self._round_robin:
            return
        for gone in self._queues.keys() - set(workers):
            for request in self._queues.pop(gone):
                self._shared.add(request)
        for worker in workers:
            self._queues.setdefault(worker, ArrivalQueue())
        for request in self._shared.take(len(self._shared)):
            self._queues[workers[self._dealt % len(workers)]].add(request)
            self._dealt += 1

    def queue_for(self, worker: str) -> ArrivalQueue:
        """Return the queue from which this live worker takes requests."""
        return self._queues.get(worker, self._shared)
