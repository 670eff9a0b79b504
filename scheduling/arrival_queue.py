"""Queues in order of arrival, from which requests may also be removed by id: one, or one for each worker."""

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from scheduling.request import Request

Entry = TypeVar("Entry", bound=tuple[Any, ...])


def ascending(heap: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of a heap in ascending order, without changing it; the first k take O(k log k)."""
    candidates = [(heap[0], 0)] if heap else []
    while candidates:
        entry, place = heapq.heappop(candidates)
        yield entry
        for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
            heapq.heappush(candidates, (heap[child], child))


class ArrivalQueue:
    """Requests in order of (arrival, id); one that comes back gets the place that its arrival gives it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}
        self._heap: list[tuple[float, str]] = []  # entries of discarded requests stay until they come first

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """The requests in order; the queue must not change meanwhile. The first few cost little, however many wait."""
        last = ""
        for _, request_id in ascending(self._heap):
            if (
                request_id in self._waiting and request_id != last
            ):  # one that was discarded and came back has two entries
                last = request_id
                yield self._waiting[request_id]

    def add(self, request: Request) -> None:
        """Put a request into its place."""
        self._waiting[request.id] = request
        heapq.heappush(self._heap, (request.arrived_at, request.id))

    def discard(self, request_id: str) -> bool:
        """Remove a request; False if it does not wait here."""
        return self._waiting.pop(request_id, None) is not None

    def take(self, most: int) -> tuple[Request, ...]:
        """Remove and return the earliest, at most so many."""
        taken: list[Request] = []
        while len(taken) < most and (request := self.peek()):
            heapq.heappop(self._heap)
            taken.append(self._waiting.pop(request.id))
        return tuple(taken)

    def peek(self) -> Request | None:
        """The earliest, or None."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][1]] if self._heap else None


class Queues(Protocol):
    """The queue or queues from which the workers take requests, each in order of arrival."""

    def add(self, request: Request) -> None:
        """Put a request into its queue, in the place that its arrival gives it."""
        ...

    def discard(self, request_id: str) -> bool:
        """Take one out; False if it does not wait here."""
        ...

    def set_workers(self, workers: Sequence[str]) -> None:
        """Set the live workers, which `queue_of` may then be asked for."""
        ...

    def queue_of(self, worker: str) -> ArrivalQueue:
        """The queue that this live worker takes from."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """Everything that waits, in order of arrival."""
        ...

    def __len__(self) -> int:
        """Requests that wait."""
        ...


class SharedQueue:
    """One queue for all workers."""

    def __init__(self) -> None:
        self._queue = ArrivalQueue()
        self.add, self.discard = self._queue.add, self._queue.discard

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def set_workers(self, workers: Sequence[str]) -> None:
        """Do nothing: the queue is the same for all."""

    def queue_of(self, worker: str) -> ArrivalQueue:
        """The one queue."""
        return self._queue


class RoundRobinQueues:
    """A queue for each worker; requests are dealt out in turn, and again when their worker has gone."""

    def __init__(self) -> None:
        self._undealt = ArrivalQueue()
        self._queues: dict[str, ArrivalQueue] = {}
        self._dealt = 0
        self.add = self._undealt.add

    def __iter__(self) -> Iterator[Request]:
        return heapq.merge(self._undealt, *self._queues.values(), key=lambda request: (request.arrived_at, request.id))

    def __len__(self) -> int:
        return len(self._undealt) + sum(map(len, self._queues.values()))

    def discard(self, request_id: str) -> bool:
        """Take one out; False if it does not wait here."""
        return any(queue.discard(request_id) for queue in (self._undealt, *self._queues.values()))

    def set_workers(self, workers: Sequence[str]) -> None:
        """Deal out in turn, among these workers, what was added since and what waits for workers that have gone."""
        for gone in self._queues.keys() - set(workers):
            for request in self._queues.pop(gone):
                self._undealt.add(request)
        for worker in workers:
            self._queues.setdefault(worker, ArrivalQueue())
        for request in self._undealt.take(len(self._undealt)):
            self._queues[workers[self._dealt % len(workers)]].add(request)
            self._dealt += 1

    def queue_of(self, worker: str) -> ArrivalQueue:
        """The worker's own queue."""
        return self._queues[worker]
