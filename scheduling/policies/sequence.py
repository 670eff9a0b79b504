"""Sequence Scheduling (Zheng et al., section 4): groups sorted by predicted length, larger batches of shorter answers.

A group is formed of at most 256 waiting requests. Predictions are rounded up to bins of 50 tokens (binning), batches of
shorter answers are larger (VBS), and a batch runs for no more iterations than were predicted: requests that are
unfinished by then are failures, which are collected and run again after the other batches of the group (FCR). Each of
the three can be switched off. The default sizes are the paper's (4.1 and 4.2). Bins of 50 tokens put answers of 2 to
100 tokens into one or two bins, so bins can be a fifth of the mean length instead.

No request starves. Groups form in order of arrival, and a request is overtaken by at most 255 others of its group.
Failures run up to their limits before the next group forms; a failure that comes back after the next group has formed
runs right after that group.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter
from statistics import fmean

from scheduling.arrival_queue import ArrivalQueue
from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape, waiting_batch
from scheduling.request import Request, discard_from, reserve_limit, split

BIN_TOKENS = 50  # the paper's bins, for answers of some 250 tokens
BIN_SHARE = 0.2  # the width of narrow bins as a share of the mean length, the same as in the paper


@dataclass(frozen=True, slots=True)
class VariableBatchSize:
    """Gives batches about `size` · `tokens` generated tokens; from `below` tokens a row on, the fixed batch size."""

    size: int = 256
    tokens: int = 50
    below: int = 300

    def batch_size_for(self, generation_length: int, fixed_size: int) -> int:
        """Return B0·L0/L for the generation length L (4.1), rounded to the nearest power of two (4.2), at least 1."""
        if generation_length >= self.below:
            return fixed_size
        exact = self.size * self.tokens / generation_length
        power = 1 << int(exact).bit_length() - 1 if exact >= 1 else 1
        return power if exact - power <= 2 * power - exact else 2 * power


class SequenceScheduling(Policy):
    """Serves one group after the other, the shortest predicted answers first."""

    why_first = "Its group of requests arrived first; within the group the shortest predicted answers are together."

    def __init__(
        self,
        group_size: int = 256,
        batch_size: int = 16,
        bin_tokens: int | None = BIN_TOKENS,  # None: no binning
        variable: VariableBatchSize | None = VariableBatchSize(),
        collect_failures: bool = True,
        resume_failures: bool = True,  # False: a failure's generated tokens are discarded, as published
        narrow_bins: bool = False,  # True: bins are BIN_SHARE of the mean prediction wide, at most `bin_tokens`
    ) -> None:
        self._group_size, self._batch_size = group_size, batch_size
        self._bin_tokens, self._variable = bin_tokens, variable
        self._collect_failures, self._resume_failures = collect_failures, resume_failures
        self._widest_bin = bin_tokens if narrow_bins else None
        self._lengths: deque[int] = deque(maxlen=group_size)  # the latest predictions, in tokens
        self._queue = ArrivalQueue()
        self._group: list[Request] = []
        self._failures: list[Request] = []
        self._halves: list[tuple[Request, ...]] = []
        self._costs: ServingTime | None = None  # the costs of the first worker of the last decision
        self._largest: KvMemory | None = None  # the memory of the largest worker

    def __len__(self) -> int:
        return len(self._queue) + len(self._group) + len(self._failures) + sum(map(len, self._halves))

    def add(self, request: Request, now: float) -> None:
        """Add a request to the queue of which groups are formed, or to the failures if it has generated tokens."""
        if request.generated:
            kept = request if self._resume_failures else replace(request, generated=0)
            self._failures.append(reserve_limit(kept))
        else:
            self._queue.add(request)
            self._lengths.append(request.predicted)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        for requests in (self._group, self._failures):
            for request in requests:
                if request.id == request_id:
                    requests.remove(request)
                    return True
        return discard_from(self._halves, request_id) or self._queue.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Give each idle worker the next batch that fits it, in the order of the workers."""
        if not workers:
            return []
        self._costs = workers[0].costs
        self._largest = max((worker.memory for worker in workers), key=attrgetter("capacity_tokens"))
        largest, idle = self._largest.capacity_tokens, (worker for worker in workers if worker.idle)
        batches = (self._next(worker, worker.memory.capacity_tokens == largest) for worker in idle)
        return [assignment for assignment in batches if assignment]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Split the batch into two sealed halves, which are served first."""
        self._halves += split(assignment.requests)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield halves of batches that did not fit, then batches of the group, of its failures and of later groups."""
        for half in self._halves:
            yield waiting_batch(half, self._costs, now, sealed=True)
        coming = iter(self._queue)
        groups = iter(lambda: self._sorted(islice(coming, self._group_size)), [])
        for requests in chain([self._group, self._failures], groups):
            start = 0
            while batch := self._first_batch(requests[start:], self._largest, is_largest=True):
                yield waiting_batch(batch, self._costs, now, self._iteration_limit(batch))
                start += len(batch)

    def _next(self, worker: Worker, is_largest: bool) -> Assignment | None:
        for index, half in enumerate(self._halves):
            if is_largest or self._fits(half, worker.memory):
                return self._assignment(worker, self._halves.pop(index), sealed=True)
        if not self._group and not self._failures:
            if self._widest_bin and self._lengths:
                self._bin_tokens = max(1, min(self._widest_bin, round(BIN_SHARE * fmean(self._lengths))))
            self._group = self._sorted(self._queue.take(self._group_size))
        requests = self._group or self._failures
        batch = self._first_batch(requests, worker.memory, is_largest)
        taken = {request.id for request in batch}
        requests[:] = [request for request in requests if request.id not in taken]
        return self._assignment(worker, batch) if batch else None

    def _sorted(self, requests: Iterable[Request]) -> list[Request]:
        return sorted(requests, key=lambda request: (self._predicted(request), request.arrived_at, request.id))

    def _first_batch(self, requests: list[Request], memory: KvMemory | None, is_largest: bool) -> tuple[Request, ...]:
        """Return the first requests that fit the memory, if it is known, and the batch size.

        A request that does not fit alone is skipped; only the largest worker takes it, as a batch of one.
        """
        batch: list[Request] = []
        length = generation_length = 0
        for request in requests:
            joined_length = max(length, request.prefill)
            joined_generation = max(generation_length, self._predicted(request))
            size = len(batch) + 1
            fits = memory is None or memory.batch_bytes(size, joined_length, joined_generation) <= memory.theta_bytes
            if batch and (not fits or size > self._size(joined_generation)):
                break
            if fits or is_largest:
                batch.append(request)
                length, generation_length = joined_length, joined_generation
        return tuple(batch)

    def _assignment(self, worker: Worker, requests: tuple[Request, ...], sealed: bool = False) -> Assignment:
        limit = self._iteration_limit(requests)
        estimated_s = worker.costs.serve_s(*batch_shape(requests, limit))
        return Assignment(worker.name, requests, limit, sealed=sealed, estimated_s=estimated_s)

    def _fits(self, requests: Sequence[Request], memory: KvMemory) -> bool:
        lengths = max(r.prefill for r in requests), max(self._predicted(r) for r in requests)
        return memory.batch_bytes(len(requests), *lengths) <= memory.theta_bytes

    def _iteration_limit(self, requests: Sequence[Request]) -> int | None:
        return max(self._predicted(request) for request in requests) if self._collect_failures else None

    def _predicted(self, request: Request) -> int:
        """Return the upper prediction of the remaining tokens, rounded up to its bin ("the max length", 4.1)."""
        bins = self._bin_tokens or 1
        return min(-(-request.remaining_upper // bins) * bins, request.limit - request.generated)

    def _size(self, generation_length: int) -> int:
        return (
            self._variable.batch_size_for(generation_length, self._batch_size) if self._variable else self._batch_size
        )
