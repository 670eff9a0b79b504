"""Which worker serves what: one shared queue, round-robin (SLS, ILS), or SCLS's max-min offloading (Eq. 11)."""

import heapq
from collections.abc import Iterator, Sequence
from typing import Protocol

from scheduling.arrival_queue import ArrivalQueue
from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.policy import Worker
from scheduling.request import Request


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


def large_enough(workers: Sequence[Worker], tokens: int) -> Sequence[Worker]:
    """The workers whose memory holds so many tokens; if none does, those with the most memory."""
    largest = max(worker.memory.capacity_tokens for worker in workers)
    least = min(tokens, largest)
    return [worker for worker in workers if worker.memory.capacity_tokens >= least]


class Placement(Protocol):
    """Chooses a worker for one batch after the other."""

    def place(self, size: int, length: int, generation_length: int) -> tuple[Worker, float]:
        """The worker for a batch of this shape, and the seconds that it is estimated to take there."""
        ...


class RoundRobin:
    """Workers take turns; one whose memory is too small for a batch is passed over."""

    def __init__(self) -> None:
        self._workers: Sequence[Worker] = ()
        self._placed = 0

    def among(self, workers: Sequence[Worker]) -> "RoundRobin":
        """Set the workers that take turns."""
        self._workers = workers
        return self

    def place(self, size: int, length: int, generation_length: int) -> tuple[Worker, float]:
        """The next worker whose memory holds the batch; if none does, the one with the most memory."""
        turn = self._placed % len(self._workers)
        self._placed += 1
        in_turn = [*self._workers[turn:], *self._workers[:turn]]
        fitting = (worker for worker in in_turn if worker.memory.fits(size, length, generation_length))
        worker = next(fitting, None) or max(in_turn, key=lambda worker: worker.memory.capacity_tokens)
        return worker, worker.costs.serve_s(size, length, generation_length)


class LeastLoaded:
    """Each batch goes to the worker where it ends first; of equal workers that is the least loaded one (Eq. 11).

    With the longest batches first this is SCLS's max-min offloading. Workers of equal costs and memory are one kind,
    kept in a heap by load, so that a batch is weighed once for each kind.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._kinds: dict[tuple[ServingTime, KvMemory], list[tuple[float, int, Worker]]] = {}
        for place, worker in enumerate(workers):
            self._kinds.setdefault((worker.costs, worker.memory), []).append((worker.busy_s, place, worker))
        for kind in self._kinds.values():
            heapq.heapify(kind)

    def place(self, size: int, length: int, generation_length: int) -> tuple[Worker, float]:
        """The worker whose load is least with the batch, of those that hold it; if none does, of the largest."""
        fitting = [kind for kind in self._kinds if kind[1].fits(size, length, generation_length)]
        if not fitting:
            largest = max(memory.capacity_tokens for _, memory in self._kinds)
            fitting = [kind for kind in self._kinds if kind[1].capacity_tokens == largest]
        ends = [
            (self._kinds[kind][0][0] + (serve_s := kind[0].serve_s(size, length, generation_length)), turn, serve_s)
            for turn, kind in enumerate(fitting)
        ]
        load_s, turn, serve_s = min(ends)
        kind = self._kinds[fitting[turn]]
        _, place, worker = kind[0]
        heapq.heapreplace(kind, (load_s, place, worker))
        return worker, serve_s

    @property
    def least_load_s(self) -> float:
        """The load of the least loaded worker."""
        return min(kind[0][0] for kind in self._kinds.values())
