"""The waiting requests by tenant, and each tenant's requests in buckets of similar lengths.

Requests of the same level whose prompt and predicted remaining tokens lie within the same steps of 25 % share a
bucket and leave it in order of arrival. Requests with a deadline have buckets of their own, in order of deadlines. A
decision considers only the first request of each bucket; there are some hundred buckets, however many requests wait.
Once a tenant has MOST_BUCKETS, its further priorities share buckets, in order of arrival less the worth of their
levels.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from scheduling.arrival_queue import ascending
from scheduling.costs import Floats
from scheduling.policies.fusion.delay_cost import NO_WORK, Backlog, WorkFeatures
from scheduling.request import PRIORITY_S, TIER_LEVELS, Request
from scheduling.virtual_token_counters import Account, TenantCounters, account_of

# Lengths of one bucket differ by at most 25 %. Finer steps order requests more exactly, but a decision prices one
# request of each bucket on every worker. Not tuned.
BUCKET_STEP = math.log(1.25)
# A tenant's lengths fill some hundred buckets; each of 201 priorities, which clients choose, has its own. Not tuned.
MOST_BUCKETS = 1000
SCALAR_FIELDS = 6  # the matrix behind `BucketHeads` has this many rows before the rows of `work_ahead`
INITIAL_COLUMNS = 64  # any positive number works, because columns are doubled when more are needed


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A waiting request, and the summed work features of all requests that waited when it arrived."""

    request: Request
    work_ahead: WorkFeatures = NO_WORK

    def misses_deadline(self, now: float, step_s: float) -> bool:
        """Return whether the request would miss its deadline if it started now, with iterations of `step_s` seconds."""
        deadline_at = self.request.deadline_at
        return deadline_at is not None and deadline_at < now + self.request.remaining * step_s


BucketKey = tuple[int, int, int, bool]


def bucket_key(request: Request, deadline_missed: bool = False) -> BucketKey:
    """Return level, length steps of prompt and remaining tokens, and whether the bucket is ordered by deadline."""
    return (
        request.level,
        int(math.log(request.prefill) / BUCKET_STEP),
        int(math.log(request.remaining) / BUCKET_STEP),
        request.deadline_at is not None and not deadline_missed,
    )


@dataclass(frozen=True, slots=True)
class BucketHeads:
    """The first request of each bucket, as one array (buckets,) for each field; no deadline is infinity."""

    arrived_at: Floats
    deadline_at: Floats
    level: Floats
    prefill: Floats
    remaining: Floats
    remaining_upper: Floats
    work_ahead: Floats  # (features, buckets)

    @classmethod
    def from_requests(cls, waiting: Sequence[WaitingRequest]) -> "BucketHeads":
        """Return these requests as heads, one column each, in the order given."""
        matrix = np.array([_column(one, by_deadline=True) for one in waiting]).T
        return cls.from_matrix(matrix)

    @classmethod
    def from_matrix(cls, matrix: Floats) -> "BucketHeads":
        """Return the heads in a matrix (fields, buckets)."""
        arrived_at, deadline_at, level, prefill, remaining, remaining_upper = matrix[:SCALAR_FIELDS]
        return cls(arrived_at, deadline_at, level, prefill, remaining, remaining_upper, matrix[SCALAR_FIELDS:])


class LengthBuckets:
    """Waiting requests by bucket; for decisions, the first request of each bucket is also a column of a matrix."""

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingRequest] = {}
        self._bucket_of: dict[str, BucketKey] = {}
        self._heaps: dict[BucketKey, list[tuple[float, float, str]]] = {}  # heaps may hold entries of removed requests
        self._column_of: dict[BucketKey, int] = {}
        self._buckets: list[BucketKey] = []  # the buckets in the order of their columns
        self._matrix = np.empty((SCALAR_FIELDS + len(NO_WORK), INITIAL_COLUMNS))

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._waiting.values())

    def add(self, waiting: WaitingRequest, deadline_missed: bool = False) -> None:
        """Add a request to its bucket; with `deadline_missed` to a bucket in order of arrival, not of deadlines."""
        request = waiting.request
        bucket = bucket_key(request, deadline_missed)
        if bucket not in self._heaps and len(self._heaps) >= MOST_BUCKETS:
            bucket = (TIER_LEVELS[request.tier], *bucket[1:])
        self._waiting[request.id], self._bucket_of[request.id] = waiting, bucket
        by_level = request.arrived_at - PRIORITY_S * request.level
        first_by = request.deadline_at if bucket[3] and request.deadline_at is not None else by_level
        heap = self._heaps.setdefault(bucket, [])
        heapq.heappush(heap, (first_by, request.arrived_at, request.id))
        if heap[0][2] == request.id:
            self._write_column(bucket)

    def take(self, request_id: str) -> WaitingRequest:
        """Remove a request and return it; raise KeyError if it is in no bucket."""
        waiting, bucket = self._waiting.pop(request_id), self._bucket_of.pop(request_id)
        if self._heaps[bucket][0][2] == request_id:
            self._advance(bucket)
        return waiting

    def demote_missed_deadlines(self, now: float, step_s: float) -> None:
        """Move requests that would miss their deadline even if started now to the buckets without deadlines."""
        for bucket in [bucket for bucket in self._buckets if bucket[3]]:
            while (waiting := self.first(bucket)) and waiting.misses_deadline(now, step_s):
                self.add(self.take(waiting.request.id), deadline_missed=True)

    def first_of_each(self, count: int) -> list[WaitingRequest]:
        """Return the first requests of each bucket: at least one of each, about `count` in all."""
        each = max(1, count // max(1, len(self._buckets)))
        firsts = (islice(self._in_order(bucket), each) for bucket in self._buckets)
        return [waiting for of_bucket in firsts for waiting in of_bucket]

    def heads(self) -> BucketHeads:
        """Return the first request of each bucket; the arrays are views that change with the buckets."""
        return BucketHeads.from_matrix(self._matrix[:, : len(self._buckets)])

    def bucket_keys(self) -> list[BucketKey]:
        """Return the keys of the buckets in the order of `heads`; this order changes when a bucket becomes empty."""
        return list(self._buckets)

    def head_column(self, request_id: str) -> int | None:
        """Return the column of a request in `heads`, or None if it is not the first of its bucket."""
        bucket = self._bucket_of.get(request_id)
        return self._column_of[bucket] if bucket and self._heaps[bucket][0][2] == request_id else None

    def first(self, bucket: BucketKey) -> WaitingRequest | None:
        """Return the first request of a bucket, or None if the bucket is empty."""
        return self._waiting[self._heaps[bucket][0][2]] if bucket in self._heaps else None

    def _in_order(self, bucket: BucketKey) -> Iterator[WaitingRequest]:
        last = ""
        for _, _, request_id in ascending(self._heaps[bucket]):
            # A request that was taken out and came back has two entries.
            if self._bucket_of.get(request_id) == bucket and request_id != last:
                last = request_id
                yield self._waiting[request_id]

    def _advance(self, bucket: BucketKey) -> None:
        """Make the next request of a bucket its first; if the bucket is empty, the last bucket gets its column."""
        heap = self._heaps[bucket]
        while heap and self._bucket_of.get(heap[0][2]) != bucket:
            heapq.heappop(heap)
        if heap:
            self._write_column(bucket)
            return
        del self._heaps[bucket]
        column, last = self._column_of.pop(bucket), self._buckets.pop()
        if last != bucket:
            self._buckets[column], self._column_of[last] = last, column
            self._matrix[:, column] = self._matrix[:, len(self._buckets)]

    def _write_column(self, bucket: BucketKey) -> None:
        """Copy the first request of a bucket into the matrix."""
        column = self._column_of.get(bucket)
        if column is None:
            column = self._column_of[bucket] = len(self._buckets)
            self._buckets.append(bucket)
            if column == self._matrix.shape[1]:
                self._matrix = np.concatenate([self._matrix, np.empty_like(self._matrix)], axis=1)
        self._matrix[:, column] = _column(self._waiting[self._heaps[bucket][0][2]], by_deadline=bucket[3])


def _column(waiting: WaitingRequest, by_deadline: bool) -> tuple[float, ...]:
    """Return a request's column of the matrix; without `by_deadline` it has no deadline there."""
    request = waiting.request
    deadline_at = math.inf if request.deadline_at is None or not by_deadline else request.deadline_at
    return (
        request.arrived_at,
        deadline_at,
        request.level,
        request.prefill,
        request.remaining,
        request.remaining_upper,
        *waiting.work_ahead,
    )


class TenantQueues:
    """Each account's waiting requests and counter, and all waiting work; the tier `priority` has its own accounts."""

    def __init__(self) -> None:
        self.by_tenant: dict[Account, LengthBuckets] = {}  # only accounts that have a request waiting
        self.counters = TenantCounters()
        self.backlog = Backlog()
        self._tenant_of: dict[str, Account] = {}

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tenant_of

    def __iter__(self) -> Iterator[WaitingRequest]:
        for buckets in self.by_tenant.values():
            yield from buckets

    def add(self, waiting: WaitingRequest) -> None:
        """Add a request to its tenant's queue."""
        request, account = waiting.request, account_of(waiting.request)
        if account not in self.by_tenant:
            self.counters.activate(account, list(self.by_tenant))
            self.by_tenant[account] = LengthBuckets()
        self.by_tenant[account].add(waiting)
        self._tenant_of[request.id] = account
        self.backlog.add(request)

    def take(self, request_id: str) -> WaitingRequest:
        """Remove a request and return it; raise KeyError if it does not wait here."""
        tenant = self._tenant_of.pop(request_id)
        waiting = self.by_tenant[tenant].take(request_id)
        if not len(self.by_tenant[tenant]):
            del self.by_tenant[tenant]
        self.backlog.remove(waiting.request)
        return waiting

    def is_first(self, request_id: str) -> bool:
        """Return whether this request waits here and is the first of its bucket."""
        tenant = self._tenant_of.get(request_id)
        return tenant is not None and self.by_tenant[tenant].head_column(request_id) is not None

    def least_served(self, count: int) -> list[Account]:
        """Return up to `count` tenants that have a waiting request, the least served first."""
        return self.counters.least_served(self.by_tenant)[:count]

    def mean_prefill(self) -> float:
        """Return the mean of the prefill tokens of the waiting requests, at least 1."""
        rows, tokens, _, _ = self.backlog.total()
        return max(1.0, tokens / max(1.0, rows))

    def mean_remaining(self) -> float:
        """Return the mean of the predicted remaining tokens of the waiting requests, at least 1."""
        rows, _, tokens, _ = self.backlog.total()
        return max(1.0, tokens / max(1.0, rows))
