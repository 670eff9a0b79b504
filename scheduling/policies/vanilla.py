"""Vanilla scheduling (Magnus II-E; SCLS's SLS): first come, first served in batches of the size that Eq. (1) gives.

VSQ is the same policy over a quantized engine, whose larger Θ gives larger batches. SLS gives each request to one of
the workers, round robin, when it comes; SCLS's ablation SO also cuts the generation into slices.

No request starves. A request is served after the requests that arrived before it (with round robin, only those of its
own worker). With slices, each earlier request is served at most ⌈limit / slice⌉ times before it.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from scheduling.arrival_queue import ArrivalQueue
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape, waiting_batch
from scheduling.request import Request, discard_from, split


def large_enough(workers: Sequence[Worker], tokens: int) -> Sequence[Worker]:
    """Return the workers whose memory holds a row of `tokens`, or else those that hold the longest rows."""
    largest = max(worker.memory.longest_row_tokens for worker in workers)
    least = min(tokens, largest)
    return [worker for worker in workers if worker.memory.longest_row_tokens >= least]


class Vanilla(Policy):
    """Batches of a fixed size; predicted lengths are not used: every request counts as Lmax + Gmax tokens.

    A worker that could not hold one such request gets no requests while there is a larger worker.
    """

    why_first = "First come, first served: it arrived first."

    def __init__(
        self,
        max_length: int,
        max_generation_length: int,
        batch_size: int | None = None,
        slice_tokens: int | None = None,
    ) -> None:
        self._max_length, self._max_generation_length = max_length, max_generation_length
        self._batch_size = batch_size  # None: Eq. (1) gives the size for each worker
        self._slice_tokens = slice_tokens
        self._queue = ArrivalQueue()
        self._halves: list[tuple[Request, ...]] = []
        self._first_worker: Worker | None = None  # the first worker of the last decision, whose costs estimates use

    def __len__(self) -> int:
        return len(self._queue) + sum(len(half) for half in self._halves)

    def add(self, request: Request, now: float) -> None:
        """Add a request to the queue, in order of arrival."""
        self._queue.add(request)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        return discard_from(self._halves, request_id) or self._queue.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Give each idle worker the next batch in order of arrival; halves of a batch that did not fit go first."""
        if not workers:
            return []
        workers = large_enough(workers, self._max_length + self._max_generation_length)
        self._first_worker = workers[0]
        assignments = []
        for worker in workers:
            if not worker.idle:
                continue
            if self._halves:
                assignments.append(self._assignment(worker, self._halves.pop(0), sealed=True))
            elif requests := self._queue.take(self.batch_size(worker)):
                assignments.append(self._assignment(worker, requests, sealed=False))
        return assignments

    def batch_size(self, worker: Worker) -> int:
        """Return the batch size of Eq. (1), unless it was given."""
        return self._batch_size or worker.memory.fixed_batch_size(self._max_length, self._max_generation_length)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Split the batch into two sealed halves, which are served before the queue."""
        self._halves += split(assignment.requests)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting requests in batches of the first worker's batch size."""
        costs = self._first_worker.costs if self._first_worker else None
        for half in self._halves:
            yield waiting_batch(half, costs, now, self._slice_tokens, sealed=True)
        requests = iter(self._queue)
        size = self.batch_size(self._first_worker) if self._first_worker else 1
        while batch := tuple(islice(requests, size)):
            yield waiting_batch(batch, costs, now, self._slice_tokens)

    def _assignment(self, worker: Worker, requests: tuple[Request, ...], sealed: bool) -> Assignment:
        estimated_s = worker.costs.serve_s(*batch_shape(requests, self._slice_tokens))
        return Assignment(worker.name, requests, self._slice_tokens, sealed=sealed, estimated_s=estimated_s)
