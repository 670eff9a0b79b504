"""Conservative continuous batching (Magnus IV; SCLS's ILS): a fixed number of slots, filled in order of arrival.

The number of slots is VS's batch size, so that memory suffices whatever the rows generate. Each join makes the running
rows wait for the joiners' prefill, and for the engine's own cost of a join.

Starvation: none is possible. A row leaves its slot after at most its limit of tokens, and slots go by arrival.
"""

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice

from scheduling.batch_estimates import waiting_batch
from scheduling.offloading import Queues, RoundRobinQueues, SharedQueue, large_enough
from scheduling.out_of_memory import reserve_limit
from scheduling.policy import Assignment, Mode, Policy, WaitingBatch, Worker
from scheduling.request import Request


class ConservativeContinuous(Policy):
    """Knows no generation length: every row is taken for one of Lmax and Gmax tokens.

    On a fleet of unequal memory a worker that could not hold one such row gets none while a larger one lives.
    """

    mode: Mode = "continuous"

    def __init__(
        self, max_length: int, max_generation_length: int, slots: int | None = None, round_robin: bool = False
    ) -> None:
        self._max_length, self._max_generation_length = max_length, max_generation_length
        self._slots = slots  # None: Eq. (1) on each worker
        self._queues: Queues = RoundRobinQueues() if round_robin else SharedQueue()
        self._like: Worker | None = None

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, request: Request, now: float) -> None:
        """To the end of the queue, or the place that its arrival gives it."""
        self._queues.add(request)

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out."""
        return self._queues.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """The earliest requests to the free slots, one after the other to the worker with the most of them."""
        if not workers or not len(self._queues):
            return []
        workers = large_enough(workers, self._max_length + self._max_generation_length)
        self._like = workers[0]
        self._queues.set_workers([worker.name for worker in workers])
        free = [(len(worker.rows) - self.slots(worker), place) for place, worker in enumerate(workers)]
        emptiest = [(taken, place) for taken, place in free if taken < 0 and not workers[place].queued]
        heapq.heapify(emptiest)
        joining: dict[str, list[Request]] = {}
        waiting = len(self._queues)
        while emptiest and waiting:
            taken, place = heapq.heappop(emptiest)
            name = workers[place].name
            requests = self._queues.queue_of(name).take(1)
            joining.setdefault(name, []).extend(requests)
            waiting -= len(requests)
            if requests and taken < -1:
                heapq.heappush(emptiest, (taken + 1, place))
        return [Assignment(name, tuple(requests), joins=True) for name, requests in joining.items() if requests]

    def slots(self, worker: Worker) -> int:
        """Eq. (1), unless fixed."""
        return self._slots or worker.memory.fixed_batch_size(self._max_length, self._max_generation_length)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """They wait again; a request that did not fit alone is known to need more than was thought."""
        alone = len(assignment.requests) == 1
        for request in assignment.requests:
            self._queues.add(reserve_limit(request) if alone else request)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """What waits, cut into as many as the first worker has slots; about so they will follow each other."""
        costs = self._like.costs if self._like else None
        requests = iter(self._queues)
        slots = self.slots(self._like) if self._like else 1
        while batch := tuple(islice(requests, slots)):
            yield waiting_batch(batch, costs, now)
