"""BATON (section 4): rows leave a running batch when they are done, and prefilled rows take their places at once.

Joiners are prefilled beside the batch, in groups of similar length, and their keys and values are then written into the
running batch's cache, so that a join adds no padding to the running rows (4.2). The paper aligns a joiner's tokens with
the end of the cache and releases the front padding that all rows have in common (4.1). In our engine
(`inference.local.kv.kv_cache`) every row starts at column 0 instead, so that there is no front padding. This policy
counts memory as the worker does: in rectangular memory rows × tokens of the longest row, as in the paper, and in paged
memory each row's own tokens.

The batch grows while memory is below one threshold and shrinks above another. A waiting request may take the place of a
running one of a lower level (4.3): of the rows of the lowest level, the one that joined last leaves, keeps its
generated tokens and waits again.

No request starves. Requests go by arrival, and a level counts as PRIORITY_S seconds of waiting, so a request n levels
higher overtakes only requests that arrived at most n · PRIORITY_S before it. A row that was preempted once is not
preempted for priority again.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice

from scheduling.arrival_queue import ArrivalQueue
from scheduling.kv_memory import ROW_GROWTH_TOKENS
from scheduling.policy import Assignment, Mode, Policy, RunningRow, WaitingBatch, Worker, waiting_batch
from scheduling.request import PRIORITY_S, Request


class Baton(Policy):
    """Continuous batching by the memory in use; predicted lengths are not used.

    Both thresholds are shares of the memory Θ. The paper names no values; these were chosen, not tuned. `grow_below`
    keeps memory for the growth of running rows, which makes batches smaller; `shrink_above` preempts rows before the
    memory runs out. The gap between the thresholds keeps a preempted row from rejoining at once.
    """

    mode: Mode = "continuous"
    why_first = "First come, first served: it arrived first."

    def __init__(self, batch_size: int | None = None, grow_below: float = 0.8, shrink_above: float = 0.95) -> None:
        self._batch_size = batch_size  # None: only memory limits a batch
        self._grow_below, self._shrink_above = grow_below, shrink_above
        self._queues: dict[int, ArrivalQueue] = {}  # the waiting requests by level
        self._in_background = False  # whether the latest request is a background request
        self._first_worker: Worker | None = None  # the first worker of the last decision, whose costs estimates use

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def add(self, request: Request, now: float) -> None:
        """Add a request to the queue of its level, in order of arrival."""
        self._in_background = request.background
        self._queues.setdefault(request.level, ArrivalQueue()).add(request)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return whether it waited here."""
        return any(queue.discard(request_id) for queue in self._queues.values())

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Shrink batches that outgrow their memory, let requests join the others, and preempt rows if none can join."""
        batches = [BatonBatch(worker) for worker in workers if not worker.queued]
        if not batches:
            return []
        self._first_worker = batches[0].worker
        for batch in batches:
            batch.shrink(self._shrink_above, only_background=self._in_background)
        smallest = [(batch.size, index) for index, batch in enumerate(batches)]
        heapify(smallest)
        while request := self._first():
            batch_to_join = self._fewest_rows(batches, smallest, request) or self._preempt(batches, request)
            if not batch_to_join:
                break
            self._queues[request.level].take(1)
            batch_to_join.join(request)
        return [assignment for batch in batches if (assignment := batch.assignment())]

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting requests in order, in batches as large as the first worker's; really they join singly."""
        costs = self._first_worker.costs if self._first_worker else None
        size = self._batch_size or max(1, len(self._first_worker.rows) if self._first_worker else 1)
        requests = self._in_order()
        while batch := tuple(islice(requests, size)):
            yield waiting_batch(batch, costs, now)

    def _in_order(self) -> Iterator[Request]:
        return merge(*self._queues.values(), key=_serving_order)

    def _first(self) -> Request | None:
        heads = [head for queue in self._queues.values() if (head := queue.peek())]
        return min(heads, key=_serving_order, default=None)

    def _fewest_rows(
        self, batches: Sequence["BatonBatch"], smallest: list[tuple[int, int]], request: Request
    ) -> "BatonBatch | None":
        """Return the batch with the fewest rows that the request may join, or None.

        `smallest` is a heap of (rows, index of the batch). A batch that could not take even a prompt of one token
        leaves the heap until the next decision.
        """
        passed_over, found = [], None
        while smallest and not found:
            size, index = heappop(smallest)
            if self._may_join(batches[index], request.prefill):
                found = batches[index]
                heappush(smallest, (size + 1, index))
            elif self._may_join(batches[index], 1):
                passed_over.append((size, index))
        for entry in passed_over:
            heappush(smallest, entry)
        return found

    def _may_join(self, batch: "BatonBatch", prefill: int) -> bool:
        """Return whether the batch stays below its threshold with this joiner; an empty batch must only hold it."""
        if batch.size >= min(self._batch_size or sys.maxsize, batch.worker.memory.most_rows):
            return False
        if not batch.size:
            return prefill < batch.worker.memory.longest_row_tokens
        return batch.tokens_with(prefill) <= self._grow_below * batch.capacity_tokens

    def _preempt(self, batches: Sequence["BatonBatch"], request: Request) -> "BatonBatch | None":
        """Preempt a row of a lower level so that the request can join; return that row's batch.

        Returns None if no batch has such a row, or if losing one brings no batch below its threshold.
        """
        candidates = [(row, batch) for batch in batches if (row := batch.first_to_leave(below=request.level))]
        for row, batch in sorted(candidates, key=lambda candidate: _preemption_order(candidate[0])):
            if batch.tokens_with(request.prefill, without=row) <= self._grow_below * batch.capacity_tokens:
                batch.leave(row)
                return batch
        return None


class BatonBatch:
    """A worker's rows as they will be once all decisions made so far are carried out."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.capacity_tokens = worker.memory.capacity_tokens
        self._rows = list(worker.rows)
        self._joiners: list[Request] = []
        self._preempted: list[str] = []
        self._longest = self._total = 0
        self._measure()

    @property
    def size(self) -> int:
        """Return the number of rows, joiners included."""
        return len(self._rows) + len(self._joiners)

    def tokens_with(self, prefill: int = 0, without: RunningRow | None = None) -> float:
        """Return the tokens in memory after the next join, with a joiner of `prefill` tokens and `without` this row."""
        longest = self._longest_without(without) if without else self._longest
        total = self._total + prefill - (_cached(without) if without else 0)
        rows = self.size + bool(prefill) - bool(without)
        growth = ROW_GROWTH_TOKENS
        return self.worker.memory.rows_tokens(rows, max(prefill, longest) + growth, total + rows * growth)

    def first_to_leave(self, below: int) -> RunningRow | None:
        """Return the row to preempt for a request of level `below`: of the rows of the lowest level, the last to join.

        Returns None if no row has a lower level. Rows that were preempted before are not preempted again.
        """
        rows = [row for row in self._rows if row.request.level < below and not row.request.generated]
        return min(rows, key=_preemption_order, default=None)

    def shrink(self, share: float, only_background: bool) -> None:
        """Preempt rows, the lowest level and in it the latest joiner first, until the others fit this share of memory.

        With `only_background` only background requests leave, because they may see only a part of a worker's memory.
        """
        if len(self._rows) <= 1 or self.tokens_with() <= share * self.capacity_tokens:
            return
        may_leave = [row for row in self._rows if row.request.background or not only_background]
        may_leave.sort(key=_preemption_order, reverse=True)
        while may_leave and len(self._rows) > 1 and self.tokens_with() > share * self.capacity_tokens:
            self.leave(may_leave.pop())

    def leave(self, row: RunningRow) -> None:
        """Remove a row from the batch and preempt it."""
        self._rows.remove(row)
        self._preempted.append(row.request.id)
        self._measure()

    def join(self, request: Request) -> None:
        """Add a joiner to the batch."""
        self._joiners.append(request)
        self._longest = max(self._longest, request.prefill)
        self._total += request.prefill

    def _measure(self) -> None:
        """Count the cached tokens of the longest row and of all rows, joiners included."""
        self._longest = self._longest_without(None)
        self._total = sum(map(_cached, self._rows)) + sum(request.prefill for request in self._joiners)

    def _longest_without(self, row: RunningRow | None) -> int:
        """Return the cached tokens of the longest row or joiner other than `row`."""
        cached = [_cached(other) for other in self._rows if other is not row]
        return max(cached + [request.prefill for request in self._joiners], default=0)

    def assignment(self) -> Assignment | None:
        """Return which rows leave and which requests then join, or None if nothing changes."""
        if not self._joiners and not self._preempted:
            return None
        longest = max((request.prefill for request in self._joiners), default=1)
        generation_length = max((request.remaining for request in self._joiners), default=0)
        estimated_s = self.worker.costs.serve_s(self.size, longest, generation_length) if self._joiners else 0.0
        return Assignment(
            self.worker.name, tuple(self._joiners), joins=True, estimated_s=estimated_s, preempts=tuple(self._preempted)
        )


def _cached(row: RunningRow) -> int:
    return row.request.length + row.generated


def _serving_order(request: Request) -> tuple[float, float, str]:
    return request.arrived_at - PRIORITY_S * request.level, request.arrived_at, request.id


def _preemption_order(row: RunningRow) -> tuple[int, float, float, str]:
    return row.request.level, -row.started_at, -row.request.arrived_at, row.request.id
