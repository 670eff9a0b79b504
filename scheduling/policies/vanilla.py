"""Vanilla scheduling (Magnus II-E; SCLS's SLS): first come, first served in batches of the size that Eq. (1) gives.

VSQ is the same policy over a quantized engine, whose Θ and hence batch size are larger.

Starvation: none is possible. A request is served once every request that arrived before it has been.
"""

from collections.abc import Iterable, Sequence

from scheduling.arrivals import ArrivalQueue
from scheduling.costs import ServingTime
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker
from scheduling.recovery import split
from scheduling.request import Request


class Vanilla(Policy):
    """Knows no generation length: every request is taken for one of Lmax and Gmax tokens."""

    def __init__(self, max_length: int, max_generation_length: int, batch_size: int | None = None) -> None:
        self._max_length, self._max_generation_length = max_length, max_generation_length
        self._batch_size = batch_size  # None: Eq. (1) on each worker
        self._queue = ArrivalQueue()
        self._halves: list[tuple[Request, ...]] = []
        self._like: Worker | None = None

    def __len__(self) -> int:
        return len(self._queue) + sum(len(half) for half in self._halves)

    def add(self, request: Request, now: float) -> None:
        """To the end of the queue, or the place that its arrival gives it."""
        self._queue.add(request)

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out."""
        for place, half in enumerate(self._halves):
            rest = tuple(request for request in half if request.id != request_id)
            if len(rest) < len(half):
                self._halves[place : place + 1] = [rest] if rest else []
                return True
        return self._queue.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """The next batch in order of arrival to each idle worker, in the order offered; halves of an OOM go first."""
        assignments = []
        for worker in workers:
            self._like = worker
            if not worker.idle:
                continue
            if self._halves:
                assignments.append(self._assignment(worker, self._halves.pop(0), sealed=True))
            elif requests := self._queue.take(self.batch_size(worker)):
                assignments.append(self._assignment(worker, requests, sealed=False))
        return assignments

    def batch_size(self, worker: Worker) -> int:
        """Eq. (1), unless fixed."""
        return self._batch_size or worker.memory.fixed_batch_size(self._max_length, self._max_generation_length)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Two sealed halves go to the head of the queue."""
        self._halves += split(assignment.requests)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """The queue cut into batches of the size of the worker that was offered last."""
        for half in self._halves:
            yield self._described(half, now, sealed=True)
        requests = list(self._queue)
        size = self.batch_size(self._like) if self._like else 1
        for first in range(0, len(requests), size):
            yield self._described(tuple(requests[first : first + size]), now, sealed=False)

    def _assignment(self, worker: Worker, requests: tuple[Request, ...], sealed: bool) -> Assignment:
        return Assignment(worker.name, requests, sealed=sealed, estimated_s=self._estimate(requests, worker.costs))

    def _estimate(self, requests: tuple[Request, ...], costs: ServingTime) -> float:
        return costs.serve_s(len(requests), *_shape(requests))

    def _described(self, requests: tuple[Request, ...], now: float, sealed: bool) -> WaitingBatch:
        estimated_s = self._estimate(requests, self._like.costs) if self._like else 0.0
        ratio = 1 + (now - requests[0].arrived_at) / estimated_s if estimated_s else 1.0
        return WaitingBatch(requests, *_shape(requests), estimated_s, ratio, sealed)


def _shape(requests: tuple[Request, ...]) -> tuple[int, int]:
    """Batch length and predicted batch generation length."""
    return max(request.prefill for request in requests), max(request.remaining for request in requests)
