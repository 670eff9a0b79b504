"""Who serves what on a fleet: one queue for all, queues dealt out in turn (SLS, ILS), or max-min (SCLS Eq. 11)."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from scheduling.arrivals import ArrivalQueue
from scheduling.request import Request


class Queues(Protocol):
    """Requests in order of arrival, in the queue or queues from which the workers take."""

    def add(self, request: Request) -> None:
        """Let a request wait."""
        ...

    def discard(self, request_id: str) -> bool:
        """Take one out; False if it does not wait here."""
        ...

    def know(self, workers: Sequence[str]) -> None:
        """Learn which workers live."""
        ...

    def of(self, worker: str) -> ArrivalQueue:
        """The queue that this live worker takes from."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """Everything that waits, in order of arrival."""
        ...

    def __len__(self) -> int:
        """Requests that wait."""
        ...


class SharedQueue:
    """One queue; whoever is free takes from it."""

    def __init__(self) -> None:
        self._queue = ArrivalQueue()
        self.add, self.discard = self._queue.add, self._queue.discard

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def know(self, workers: Sequence[str]) -> None:
        """Nothing depends on it."""

    def of(self, worker: str) -> ArrivalQueue:
        """The one queue."""
        return self._queue


class RoundRobinQueues:
    """A queue for each worker; requests are dealt out in turn as they come, and again when their worker is gone."""

    def __init__(self) -> None:
        self._undealt = ArrivalQueue()
        self._queues: dict[str, ArrivalQueue] = {}
        self._dealt = 0
        self.add = self._undealt.add

    def __iter__(self) -> Iterator[Request]:
        waiting = [request for queue in (self._undealt, *self._queues.values()) for request in queue]
        return iter(sorted(waiting, key=lambda request: (request.arrived_at, request.id)))

    def __len__(self) -> int:
        return len(self._undealt) + sum(map(len, self._queues.values()))

    def discard(self, request_id: str) -> bool:
        """Take one out; False if it does not wait here."""
        return any(queue.discard(request_id) for queue in (self._undealt, *self._queues.values()))

    def know(self, workers: Sequence[str]) -> None:
        """Deal out what came since, in turn, among these workers."""
        for gone in self._queues.keys() - set(workers):
            for request in self._queues.pop(gone):
                self._undealt.add(request)
        for worker in workers:
            self._queues.setdefault(worker, ArrivalQueue())
        for request in self._undealt.take(len(self._undealt)):
            self._queues[workers[self._dealt % len(workers)]].add(request)
            self._dealt += 1

    def of(self, worker: str) -> ArrivalQueue:
        """The worker's own queue."""
        return self._queues[worker]


def max_min(estimated_s: Sequence[float], loads_s: Mapping[str, float]) -> list[str]:
    """The worker for each batch: the longest batch to the least loaded worker, one after the other (Eq. 11)."""
    least = [(load_s, place, worker) for place, (worker, load_s) in enumerate(loads_s.items())]
    heapq.heapify(least)
    placed: dict[int, str] = {}
    for batch in sorted(range(len(estimated_s)), key=lambda batch: -estimated_s[batch]):
        load_s, place, worker = least[0]
        heapq.heapreplace(least, (load_s + estimated_s[batch], place, worker))
        placed[batch] = worker
    return [placed[batch] for batch in range(len(estimated_s))]
