"""WMA-directed adaptive batching: Magnus's Algorithm 1 over the waiting batches, without looking at all of them.

Why looking at few suffices. By `scheduling.wasted_memory_access`, a request q may join batch B only if

    reads(L', G') - min(useful(B), useful(q)) < Φ,  with L' = max(L(B), L(q)), G' = max(G(B), G(q)).

Reads grow with L' and G', and no request has more useful reads than its batch has reads; so useful(B) must lie within Φ
of useful(q). Open batches are kept in cells of width Φ by their useful reads: three cells hold every candidate. A batch
that is sealed, or so full that not even one more row of its own shape fits, is in no cell.
"""

from collections.abc import Iterable, Iterator

from scheduling.request import Request
from scheduling.wasted_memory_access import batch_reads, useful_reads


class AdaptiveBatch:
    """A waiting batch; `number` grows in the order of creation, lengths are maxima over the requests."""

    def __init__(self, number: int, requests: Iterable[Request], sealed: bool) -> None:
        self.number, self.sealed = number, sealed
        self.requests: dict[str, Request] = {}
        self.length = self.generation_length = self.upper = 0
        self.arrived_at = self.useful = self.least_tokens = float("inf")
        for request in requests:
            self.insert(request)

    def insert(self, request: Request) -> None:
        """Let a request join."""
        self.requests[request.id] = request
        self.length = max(self.length, request.prefill)
        self.generation_length = max(self.generation_length, request.remaining)
        self.upper = max(self.upper, request.remaining_upper)
        self.arrived_at = min(self.arrived_at, request.arrived_at)
        self.useful = min(self.useful, useful_reads(request.prefill, request.remaining))
        self.least_tokens = min(self.least_tokens, request.prefill + request.remaining_upper)  # of any request alone

    @property
    def tokens(self) -> int:
        """Eq. (5) in tokens: what the key-value cache may hold at the end, the upper prediction reserved."""
        return len(self.requests) * (self.length + self.upper)


class AdaptiveBatcher:
    """The waiting batches by number; `changed` holds the numbers of those that came, changed or went, until cleared."""

    def __init__(self, wma_threshold: int) -> None:
        self.wma_threshold = wma_threshold
        self.batches: dict[int, AdaptiveBatch] = {}
        self.changed: set[int] = set()
        self.capacity_tokens: int | None = None  # unbounded until a worker is known
        self.max_size: int | None = None
        self._batch_of: dict[str, AdaptiveBatch] = {}
        self._cells: dict[int, dict[int, AdaptiveBatch]] = {}
        self._created = 0

    def __len__(self) -> int:
        return len(self._batch_of)

    def bound(self, capacity_tokens: int, max_size: int | None) -> None:
        """Bound what a batch may grow to; batches that are beyond a lower bound are packed again."""
        if (capacity_tokens, max_size) == (self.capacity_tokens, self.max_size):
            return
        for batch in self.batches.values():
            self._leave_cell(batch)
        self.capacity_tokens, self.max_size = capacity_tokens, max_size
        beyond = [
            batch for batch in self.batches.values() if self._full(len(batch.requests), batch.length + batch.upper)
        ]
        for batch in self.batches.values():
            self._enter_cell(batch)
        for batch in beyond:
            if len(batch.requests) > 1:
                for request in self.take(batch):
                    self.add(request)

    def add(self, request: Request) -> AdaptiveBatch:
        """Algorithm 1: the request joins the batch whose WMA is then least, if below Φ, else it opens a batch."""
        batch = self._least_waste(request)
        if batch is None:
            return self.open((request,), sealed=False)
        self._leave_cell(batch)
        batch.insert(request)
        self._batch_of[request.id] = batch
        self.changed.add(batch.number)
        self._enter_cell(batch)
        return batch

    def open(self, requests: Iterable[Request], sealed: bool) -> AdaptiveBatch:
        """A new batch of these requests; into a sealed one nothing may be inserted (Magnus III-C)."""
        batch = AdaptiveBatch(self._created, requests, sealed)
        self._created += 1
        self.batches[batch.number] = batch
        self.changed.add(batch.number)
        self._batch_of.update(dict.fromkeys(batch.requests, batch))
        self._enter_cell(batch)
        return batch

    def take(self, batch: AdaptiveBatch) -> tuple[Request, ...]:
        """Take a batch out of the waiting room."""
        self._leave_cell(batch)
        del self.batches[batch.number]
        self.changed.add(batch.number)
        for request_id in batch.requests:
            del self._batch_of[request_id]
        return tuple(batch.requests.values())

    def without(self, batch: AdaptiveBatch, request_ids: Iterable[str]) -> AdaptiveBatch | None:
        """Put what remains of a batch, without these requests, in its place; None if nothing remains."""
        gone = set(request_ids)
        rest = [request for request in self.take(batch) if request.id not in gone]
        return self.open(rest, batch.sealed) if rest else None

    def batch_of(self, request_id: str) -> AdaptiveBatch | None:
        """The batch in which a request waits."""
        return self._batch_of.get(request_id)

    def _least_waste(self, request: Request) -> AdaptiveBatch | None:
        length, generation_length, upper = request.prefill, request.remaining, request.remaining_upper
        useful = useful_reads(length, generation_length)
        best, least = None, self.wma_threshold
        for batch in self._candidates(useful):
            joined_length, joined_upper = max(length, batch.length), max(upper, batch.upper)
            if self._full(len(batch.requests) + 1, joined_length + joined_upper):
                continue
            joined_generation = max(generation_length, batch.generation_length)
            wma = batch_reads(joined_length, joined_generation) - min(useful, batch.useful)
            if wma < least or (best is not None and wma == least and batch.number < best.number):
                best, least = batch, int(wma)
        return best

    def _candidates(self, useful: int) -> Iterator[AdaptiveBatch]:
        width = max(1, self.wma_threshold)
        for cell in range((useful - width) // width, (useful + width) // width + 1):
            yield from self._cells.get(cell, {}).values()

    def _full(self, size: int, row_tokens: int) -> bool:
        if self.max_size is not None and size > self.max_size:
            return True
        return self.capacity_tokens is not None and size * row_tokens > self.capacity_tokens

    def _cell(self, batch: AdaptiveBatch) -> int:
        return int(batch.useful // max(1, self.wma_threshold))

    def _enter_cell(self, batch: AdaptiveBatch) -> None:
        if not batch.sealed and not self._full(len(batch.requests) + 1, batch.length + batch.upper):
            self._cells.setdefault(self._cell(batch), {})[batch.number] = batch

    def _leave_cell(self, batch: AdaptiveBatch) -> None:
        cell = self._cells.get(self._cell(batch), {})
        cell.pop(batch.number, None)
        if not cell:
            self._cells.pop(self._cell(batch), None)
