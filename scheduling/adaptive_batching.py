"""WMA-directed adaptive batching (Magnus III-C): a batch's wasted memory access, and Algorithm 1 over waiting batches.

Wasted memory access (WMA) counts the reads of cached tokens that add nothing to an answer. Eq. (2) + (3) of a request
simplify. With g = G(p), l = L(p), L = L(B), G = G(B):

    g·(L - l) + Σ from i = g to G of (i + L)  =  [(G + 1)·L + G·(G + 1)/2]  -  [g·l + g·(g - 1)/2]

The first bracket, the reads of a row, depends on the batch alone; the second, the useful reads, on the request alone.
So the WMA of a batch is its first bracket minus the smallest second bracket of its requests, and the effect of one more
request is known without looking at the others. A request q may join batch B only if

    reads(L', G') - min(useful(B), useful(q)) < Φ,  with L' = max(L(B), L(q)), G' = max(G(B), G(q)).

Reads grow with L' and G', and no request has more useful reads than its batch has reads, so useful(B) must lie within Φ
of useful(q). Batches are kept in buckets of width Φ by their useful reads, so three buckets hold every candidate. A
batch is in no bucket if no request may join it (sealed, or its own waste is Φ or more), or if one more row of its shape
would not fit.
"""

from collections.abc import Iterable, Iterator

from scheduling.kv_memory import KvMemory
from scheduling.request import Request

# The most requests of a batch until a worker is known: a request that leaves its batch takes time by the batch's size.
# Not tuned.
UNKNOWN_SIZE = 256


def generating_waste(length: int, generation_length: int, batch_length: int) -> int:
    """Return the reads of a request's pad tokens until its EOS, Eq. (2)."""
    return generation_length * (batch_length - length)


def waiting_waste(generation_length: int, batch_length: int, batch_generation_length: int) -> int:
    """Return the reads of a finished request's tokens, with padding, until its batch ends, Eq. (3)."""
    iterations = batch_generation_length - generation_length + 1
    return iterations * (generation_length + batch_generation_length) // 2 + iterations * batch_length


def batch_reads(batch_length: int, batch_generation_length: int) -> int:
    """Return all reads of one row of a batch: the first bracket."""
    return (batch_generation_length + 1) * batch_length + batch_generation_length * (batch_generation_length + 1) // 2


def useful_reads(length: int, generation_length: int) -> int:
    """Return the reads that serve the request's own answer: the second bracket."""
    return generation_length * length + generation_length * (generation_length - 1) // 2


def wasted_memory_access(lengths: list[tuple[int, int]]) -> int:
    """Return the largest waste of any request, Eq. (4); a request is (length, generation length)."""
    batch_length = max(length for length, _ in lengths)
    batch_generation_length = max(generation_length for _, generation_length in lengths)
    return batch_reads(batch_length, batch_generation_length) - min(useful_reads(*request) for request in lengths)


class AdaptiveBatch:
    """A waiting batch. Batches are numbered in order of creation; lengths, in tokens, are maxima over the requests."""

    def __init__(self, number: int, requests: Iterable[Request], sealed: bool) -> None:
        self.number, self.sealed = number, sealed
        self.requests: dict[str, Request] = {}
        self.length = self.generation_length = self.upper_generation_length = 0
        self.arrived_at = self.useful_reads = self.smallest_request_tokens = float("inf")
        for request in requests:
            self.insert(request)

    def insert(self, request: Request) -> None:
        """Add a request to the batch."""
        self.requests[request.id] = request
        self.length = max(self.length, request.prefill)
        self.generation_length = max(self.generation_length, request.remaining)
        self.upper_generation_length = max(self.upper_generation_length, request.remaining_upper)
        self.arrived_at = min(self.arrived_at, request.arrived_at)
        self.useful_reads = min(self.useful_reads, useful_reads(request.prefill, request.remaining))
        self.smallest_request_tokens = min(self.smallest_request_tokens, request.prefill + request.remaining_upper)

    @property
    def reserved_tokens(self) -> int:
        """Return the tokens of KV cache that the batch reserves: Eq. (5) divided by Δ, with the upper predictions."""
        return len(self.requests) * (self.length + self.upper_generation_length)


class AdaptiveBatcher:
    """Keeps the waiting batches by number, and applies Algorithm 1 to each new request.

    `changed` has the numbers of the batches that were opened, changed or removed; its reader must clear it.
    """

    def __init__(self, wma_threshold: int) -> None:
        self.wma_threshold = wma_threshold
        self.batches: dict[int, AdaptiveBatch] = {}
        self.changed: set[int] = set()
        self.memory: KvMemory | None = None  # no limit until a worker is known
        self.max_size: int | None = UNKNOWN_SIZE
        self._batch_of: dict[str, AdaptiveBatch] = {}
        self._buckets: dict[int, dict[int, AdaptiveBatch]] = {}
        self._created = 0

    def __len__(self) -> int:
        return len(self._batch_of)

    def set_limits(self, memory: KvMemory, max_size: int | None) -> None:
        """Set the limits of memory and size of a batch; requests of batches that exceed a new limit are added anew."""
        if (memory, max_size) == (self.memory, self.max_size):
            return
        for batch in self.batches.values():
            self._remove_from_bucket(batch)
        self.memory, self.max_size = memory, max_size
        too_large = [
            batch
            for batch in self.batches.values()
            if self._full(len(batch.requests), batch.length + batch.upper_generation_length)
        ]
        for batch in self.batches.values():
            self._add_to_bucket(batch)
        for batch in too_large:
            if len(batch.requests) > 1:
                for request in self.take(batch):
                    self.add(request)

    def set_threshold(self, wma_threshold: int) -> None:
        """Change Φ and pack the waiting requests anew, except those of sealed batches."""
        if wma_threshold == self.wma_threshold:
            return
        open_batches = [batch for batch in self.batches.values() if not batch.sealed]
        requests = [request for batch in open_batches for request in self.take(batch)]
        self.wma_threshold = wma_threshold
        for request in sorted(requests, key=lambda request: (request.arrived_at, request.id)):
            self.add(request)

    def add(self, request: Request) -> AdaptiveBatch:
        """Add a request to the batch whose WMA would be least, or to a new one if no WMA is below Φ (Algorithm 1)."""
        batch = self._least_wasteful_batch(request)
        if batch is None:
            return self.open_batch((request,), sealed=False)
        self._remove_from_bucket(batch)
        batch.insert(request)
        self._batch_of[request.id] = batch
        self.changed.add(batch.number)
        self._add_to_bucket(batch)
        return batch

    def open_batch(self, requests: Iterable[Request], sealed: bool) -> AdaptiveBatch:
        """Open a batch of these requests; if it is `sealed`, no other request may join it (Magnus III-C)."""
        batch = AdaptiveBatch(self._created, requests, sealed)
        self._created += 1
        self.batches[batch.number] = batch
        self.changed.add(batch.number)
        self._batch_of.update(dict.fromkeys(batch.requests, batch))
        self._add_to_bucket(batch)
        return batch

    def take(self, batch: AdaptiveBatch) -> tuple[Request, ...]:
        """Remove a batch and return its requests."""
        self._remove_from_bucket(batch)
        del self.batches[batch.number]
        self.changed.add(batch.number)
        for request_id in batch.requests:
            del self._batch_of[request_id]
        return tuple(batch.requests.values())

    def remove_requests(self, batch: AdaptiveBatch, request_ids: Iterable[str]) -> AdaptiveBatch | None:
        """Replace a batch by a new one without these requests; return None if no request is left."""
        removed = set(request_ids)
        kept = [request for request in self.take(batch) if request.id not in removed]
        return self.open_batch(kept, batch.sealed) if kept else None

    def batch_with(self, request_id: str) -> AdaptiveBatch | None:
        """Return the batch in which a request waits, or None."""
        return self._batch_of.get(request_id)

    def _least_wasteful_batch(self, request: Request) -> AdaptiveBatch | None:
        length, generation_length, upper = request.prefill, request.remaining, request.remaining_upper
        if length + generation_length >= self.wma_threshold:  # the request's own waste
            return None
        useful = useful_reads(length, generation_length)
        best, least = None, self.wma_threshold
        for batch in self._candidates(useful):
            joined_length, joined_upper = max(length, batch.length), max(upper, batch.upper_generation_length)
            if self._full(len(batch.requests) + 1, joined_length + joined_upper):
                continue
            joined_generation = max(generation_length, batch.generation_length)
            wma = batch_reads(joined_length, joined_generation) - min(useful, batch.useful_reads)
            if wma < least or (best is not None and wma == least and batch.number < best.number):
                best, least = batch, int(wma)
        return best

    def _candidates(self, useful: int) -> Iterator[AdaptiveBatch]:
        width = max(1, self.wma_threshold)
        for bucket in range((useful - width) // width, (useful + width) // width + 1):
            yield from self._buckets.get(bucket, {}).values()

    def _full(self, size: int, row_tokens: int) -> bool:
        if self.max_size is not None and size > self.max_size:
            return True
        return self.memory is not None and self.memory.batch_bytes(size, row_tokens, 0) > self.memory.theta_bytes

    def _bucket(self, batch: AdaptiveBatch) -> int:
        return int(batch.useful_reads // max(1, self.wma_threshold))

    def _add_to_bucket(self, batch: AdaptiveBatch) -> None:
        full = self._full(len(batch.requests) + 1, batch.length + batch.upper_generation_length)
        waste = batch_reads(batch.length, batch.generation_length) - batch.useful_reads
        if not batch.sealed and not full and waste < self.wma_threshold:
            self._buckets.setdefault(self._bucket(batch), {})[batch.number] = batch

    def _remove_from_bucket(self, batch: AdaptiveBatch) -> None:
        bucket = self._buckets.get(self._bucket(batch), {})
        bucket.pop(batch.number, None)
        if not bucket:
            self._buckets.pop(self._bucket(batch), None)
