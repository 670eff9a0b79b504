"""BATON (section 4): rows leave a running batch when they are done and prefilled ones take their places at once.

Joiners are prefilled beside the batch, in groups of similar length, and their keys and values are embedded end-aligned,
so that a join adds no padding to the running rows (4.2); the engine releases the front padding that all have in common
(4.1). The batch grows while memory is below one threshold and shrinks above another, and a waiting request takes the
place of a running one of lower priority (4.3): the row of the lowest priority that joined last leaves, and waits with
what it has generated.

Starvation: none is possible. Requests go by arrival; a level of priority is worth a fixed time of waiting, so nobody is
overtaken by requests that arrive later than that after it, and a row that has come back once is not preempted for
priority again.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice

from scheduling.arrival_queue import ArrivalQueue
from scheduling.batch_estimates import waiting_batch
from scheduling.out_of_memory import reserve_limit
from scheduling.policy import Assignment, Mode, Policy, RunningRow, WaitingBatch, Worker
from scheduling.request import Request

PRIORITY_S = 300.0  # how much waiting a level of priority is worth
NEXT = 2  # tokens by which rows will have grown when a joiner's first iteration is over


class Baton(Policy):
    """Knows no generation length: memory is watched, not predicted."""

    mode: Mode = "continuous"

    def __init__(self, batch_size: int | None = None, grow_below: float = 0.8, shrink_above: float = 0.95) -> None:
        self._batch_size = batch_size  # None: as memory allows
        self._grow_below, self._shrink_above = grow_below, shrink_above  # shares of Θ
        self._queues: dict[int, ArrivalQueue] = {}  # by priority
        self._like: Worker | None = None

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def add(self, request: Request, now: float) -> None:
        """To the place that its arrival and its priority give it."""
        self._queues.setdefault(request.priority, ArrivalQueue()).add(request)

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out."""
        return any(queue.discard(request_id) for queue in self._queues.values())

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Shrink what outgrows its memory, fill what has room, and preempt for priority where nothing has."""
        batches = [BatonBatch(worker) for worker in workers if not worker.queued]
        if not batches:
            return []
        self._like = batches[0].worker
        for batch in batches:
            batch.shrink(self._shrink_above)
        smallest = [(batch.size, place) for place, batch in enumerate(batches)]
        heapify(smallest)
        while request := self._first():
            goal = self._roomiest(batches, smallest, request) or self._preempt(batches, request)
            if not goal:
                break
            self._queues[request.priority].take(1)
            goal.join(request)
        return [assignment for batch in batches if (assignment := batch.assignment())]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """They wait again; a request that did not fit alone is known to need more than was thought."""
        alone = len(assignment.requests) == 1
        for request in assignment.requests:
            self.add(reserve_limit(request) if alone else request, now)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """What waits, cut into batches of as many as last ran on a worker; about so they will follow each other."""
        costs = self._like.costs if self._like else None
        size = self._batch_size or max(1, len(self._like.rows) if self._like else 1)
        requests = self._in_order()
        while batch := tuple(islice(requests, size)):
            yield waiting_batch(batch, costs, now)

    def _in_order(self) -> Iterator[Request]:
        return merge(*self._queues.values(), key=_key)

    def _first(self) -> Request | None:
        heads = [head for queue in self._queues.values() if (head := queue.peek())]
        return min(heads, key=_key, default=None)

    def _roomiest(
        self, batches: Sequence["BatonBatch"], smallest: list[tuple[int, int]], request: Request
    ) -> "BatonBatch | None":
        """Of the batches with room for a request the one of the fewest rows.

        `smallest` is a heap of rows and places; a batch without room for anyone falls out until the next decision.
        """
        passed_over, goal = [], None
        while smallest and not goal:
            size, place = heappop(smallest)
            if self._has_room(batches[place], request.prefill):
                goal = batches[place]
                heappush(smallest, (size + 1, place))
            elif self._has_room(batches[place], 1):
                passed_over.append((size, place))
        for entry in passed_over:
            heappush(smallest, entry)
        return goal

    def _has_room(self, batch: "BatonBatch", prefill: int) -> bool:
        """An empty batch has for anyone."""
        if self._batch_size and batch.size >= self._batch_size:
            return False
        return not batch.size or batch.tokens_with(prefill) <= self._grow_below * batch.capacity_tokens

    def _preempt(self, batches: Sequence["BatonBatch"], request: Request) -> "BatonBatch | None":
        """The batch in which a row of lower priority has made room; None if no row has, or if one were too few."""
        candidates = [(row, batch) for batch in batches if (row := batch.least(below=request.priority))]
        for row, batch in sorted(candidates, key=lambda candidate: _leaves_first(candidate[0])):
            if batch.tokens_with(request.prefill, without=row) <= self._grow_below * batch.capacity_tokens:
                batch.leave(row)
                return batch
        return None


class BatonBatch:
    """A worker's rows as they will be once what is decided is carried out."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.capacity_tokens = worker.memory.capacity_tokens
        self._rows = list(worker.rows)
        self._joiners: list[Request] = []
        self._preempted: list[str] = []
        self._longest = self._longest_without(None)

    @property
    def size(self) -> int:
        """Rows, joiners included."""
        return len(self._rows) + len(self._joiners)

    def tokens_with(self, prefill: int = 0, without: RunningRow | None = None) -> int:
        """Cached tokens, padding included, an iteration from now, perhaps with a joiner and without a row."""
        longest = self._longest_without(without) if without else self._longest
        return (self.size + bool(prefill) - bool(without)) * (max(prefill, longest) + NEXT)

    def least(self, below: int) -> RunningRow | None:
        """The row of the lowest priority that joined last, of those below a priority that have not come back before."""
        rows = [row for row in self._rows if row.request.priority < below and not row.request.generated]
        return min(rows, key=_leaves_first, default=None)

    def shrink(self, share: float) -> None:
        """Rows leave, the lowest priority and the last to join first, until memory is below its threshold."""
        while len(self._rows) > 1 and self.tokens_with() > share * self.capacity_tokens:
            self.leave(min(self._rows, key=_leaves_first))

    def leave(self, row: RunningRow) -> None:
        """Take a row out."""
        self._rows.remove(row)
        self._preempted.append(row.request.id)
        self._longest = self._longest_without(None)

    def join(self, request: Request) -> None:
        """Let a request in."""
        self._joiners.append(request)
        self._longest = max(self._longest, request.prefill)

    def _longest_without(self, row: RunningRow | None) -> int:
        """Cached tokens of the longest of all rows and joiners but one row."""
        cached = [other.request.length + other.generated for other in self._rows if other is not row]
        return max(cached + [request.prefill for request in self._joiners], default=0)

    def assignment(self) -> Assignment | None:
        """Who leaves and who joins then; the worker prefills joiners of similar length together."""
        if not self._joiners and not self._preempted:
            return None
        longest = max((request.prefill for request in self._joiners), default=1)
        generation_length = max((request.remaining for request in self._joiners), default=0)
        estimated_s = self.worker.costs.serve_s(self.size, longest, generation_length) if self._joiners else 0.0
        return Assignment(
            self.worker.name,
            tuple(self._joiners),
            joins=True,
            estimated_s=estimated_s,
            preempts=tuple(self._preempted),
        )


def _key(request: Request) -> tuple[float, float, str]:
    return request.arrived_at - PRIORITY_S * request.priority, request.arrived_at, request.id


def _leaves_first(row: RunningRow) -> tuple[int, float, float, str]:
    return row.request.priority, -row.started_at, -row.request.arrived_at, row.request.id
