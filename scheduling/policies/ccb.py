"""Conservative continuous batching (Magnus IV; SCLS's ILS): a fixed number of slots, filled in order of arrival.

The number of slots is the batch size of vanilla scheduling (VS), so that memory suffices whatever the rows generate.
Each join makes the running rows wait for the joiners' prefill, and for the engine's own cost of a join.

For each slot one more request is sent to the worker ahead of time. These requests wait there and take the next free
slots, so that no slot is empty during a message to the planner and back: without these requests, six slots held 2.8
rows on average in a live service.

No request starves: a row leaves its slot after at most its limit of tokens, and slots are filled in order of arrival.
"""

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice

from scheduling.arrival_queue import ArrivalQueue
from scheduling.policies.vanilla import large_enough
from scheduling.policy import Assignment, Mode, Policy, WaitingBatch, Worker, waiting_batch
from scheduling.request import Request


class ConservativeContinuous(Policy):
    """Continuous batching in slots; predicted lengths are not used: every row counts as Lmax + Gmax tokens.

    A worker that could not hold one such row gets no rows while there is a larger worker.
    """

    mode: Mode = "continuous"
    why_first = "First come, first served: it arrived first."

    def __init__(
        self,
        max_length: int,
        max_generation_length: int,
        slots: int | None = None,
        sends_ahead: bool = True,
    ) -> None:
        """`sends_ahead` is False in simulations of the papers, because their decisions take no time."""
        self._sent_for_a_slot = 2 if sends_ahead else 1
        self._max_length, self._max_generation_length = max_length, max_generation_length
        self._slots = slots  # None: each worker has as many slots as Eq. (1) allows
        self._queue = ArrivalQueue()
        self._first_worker: Worker | None = None  # the first worker of the last decision, whose costs estimates use

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: Request, now: float) -> None:
        """Add a request to the queue, in order of arrival."""
        self._queue.add(request)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return whether it waited here."""
        return self._queue.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Give the earliest requests to the free slots, each to the worker that then has the most free slots.

        Once no slot is free, the next requests are sent ahead, each as an assignment of its own.
        """
        if not workers or not len(self._queue):
            return []
        workers = large_enough(workers, self._max_length + self._max_generation_length)
        self._first_worker = workers[0]
        slots = [self.slots(worker) for worker in workers]
        # A heap of (minus free slots, index of the worker); the number is positive once requests were sent ahead.
        emptiest = [
            (len(worker.rows) - slots[index], index)
            for index, worker in enumerate(workers)
            if len(worker.rows) < self._sent_for_a_slot * slots[index] and not worker.queued
        ]
        heapq.heapify(emptiest)
        joining: dict[int, list[Request]] = {}
        ahead: list[Assignment] = []
        while emptiest and len(self._queue):
            minus_free, index = heapq.heappop(emptiest)
            requests = self._queue.take(1)
            if minus_free < 0:
                joining.setdefault(index, []).extend(requests)
            else:
                ahead.append(Assignment(workers[index].name, requests, joins=True, most_rows=slots[index]))
            if minus_free + 1 < (self._sent_for_a_slot - 1) * slots[index]:
                heapq.heappush(emptiest, (minus_free + 1, index))
        joined = [
            Assignment(workers[index].name, tuple(requests), joins=True, most_rows=slots[index])
            for index, requests in joining.items()
        ]
        return joined + ahead

    def slots(self, worker: Worker) -> int:
        """Return the number of the worker's slots: the batch size of Eq. (1), unless it was given."""
        return self._slots or worker.memory.fixed_batch_size(self._max_length, self._max_generation_length)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting requests in batches as large as the first worker's slots; really they join one by one."""
        costs = self._first_worker.costs if self._first_worker else None
        requests = iter(self._queue)
        slots = self.slots(self._first_worker) if self._first_worker else 1
        while batch := tuple(islice(requests, slots)):
            yield waiting_batch(batch, costs, now)
