"""The workers and their rows as arrays, joiners of the present decision included, and the predicted peak of memory.

The peak of a continuous batch's memory over its predicted future is computed as in Past-Future. All rows grow by one
token in each iteration, and a row's memory is free once it ends. So memory is largest just before some row ends. Let
row i have ci cached and ri remaining tokens, with r1 ≥ r2 ≥ …. When the k-th row ends, k rows are left. Rectangular
memory then holds k times the tokens of the longest of these rows, max(c1..ck) + rk; paged memory holds each row's own
tokens and o unused tokens of its last block:

    rectangular: peak = max over k of k · (max(c1..ck) + rk)
    paged:       peak = max over k of c1 + … + ck + k · (rk + o)

Layers with a window hold at most k windows of tokens for k rows (`KvMemory.held`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.costs import Floats, Ints, linearized
from scheduling.kv_memory import ROW_GROWTH_TOKENS, KvMemory, held_tokens
from scheduling.length_distributions import conditional_totals
from scheduling.policy import Worker
from scheduling.request import Request

# A worker counts as busy at this share of its largest throughput in tokens. Two workers with the costs of the bundled
# model at 35 times its size were simulated with more requests than they can serve: with 600 requests, shares of 0.7,
# 7/8 and 1 (no limit) give 35.3, 38.2 and 38.9 requests a second and mean response times of 1.9, 2.3 and 2.4 s; with
# 2,000 requests 37.7, 43.1 and 44.7 a second and 4.3, 4.2 and 5.7 s. On a service, 0.92 instead of 7/8 answered 1.09
# times as many requests with 0.99 times the mean response time (docs/results/live.md). On the published GPUs memory is
# full before this limit is reached.
BUSY_SHARE = 0.92
LEAST_ROWS = 16  # a worker may always have this many rows, because fitted costs may be wrong
# The rows beside so many joiners fit the processor's cache: 2,048 pairs of 80 rows take 0.8 instead of 3.1 ms. Any
# number from 128 to 512 is about as fast.
PAIRS_AT_ONCE = 256
TINY_S = 1e-12  # the least divisor; by fitted costs a further row may cost nothing


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """How the memory of each worker counts the tokens of its rows; an element of each array belongs to one worker."""

    paged: NDArray[np.bool_]
    overhead: Floats  # the mean unused tokens of a row's last block in paged memory
    windowed_share: Floats
    window_tokens: Floats

    @classmethod
    def of(cls, memories: Sequence[KvMemory]) -> "MemoryRules":
        """Return the rules of these workers' memories."""
        return cls(
            np.array([memory.paged for memory in memories], np.bool_),
            np.array([memory.row_overhead_tokens for memory in memories], np.float64),
            np.array([memory.windowed_share for memory in memories], np.float64),
            np.array([memory.window_tokens for memory in memories], np.float64),
        )

    def __getitem__(self, workers: Ints) -> "MemoryRules":
        """Return the rules of these workers."""
        share, window = self.windowed_share[workers], self.window_tokens[workers]
        return MemoryRules(self.paged[workers], self.overhead[workers], share, window)

    def held(self, tokens: Floats, rows: Ints | Floats | int = 1) -> Floats:
        """Return `KvMemory.held` of tokens (workers,) or (workers, n), each row of them by its worker's rules."""
        if not self.windowed_share.any():
            return tokens
        each = -1, *[1] * (tokens.ndim - 1)
        return held_tokens(tokens, rows, self.windowed_share.reshape(each), self.window_tokens.reshape(each))


@dataclass(frozen=True, slots=True)
class FutureMemory:
    """The rows of several workers, those with the most remaining tokens first; `remaining` is -inf without a row."""

    remaining: Floats  # (workers, rows)
    longest: Floats  # (workers, rows): the most cached tokens among a row and the rows before it in this order
    total: Floats  # (workers, rows): the cached tokens of a row and of the rows before it, summed
    rules: MemoryRules

    @classmethod
    def from_rows(cls, cached: Floats, remaining: Floats, rules: MemoryRules) -> "FutureMemory":
        """Sort rows, given as (workers, rows) in any order; `remaining` must be -inf where there is no row."""
        order = np.argsort(-remaining, axis=1, kind="stable")
        cached = cached[np.arange(len(order))[:, None], order]
        ordered = remaining[np.arange(len(order))[:, None], order]
        return cls(ordered, np.maximum.accumulate(cached, axis=1), np.cumsum(cached, axis=1), rules)

    def replace(self, workers: Ints, cached: Floats, remaining: Floats) -> None:
        """Replace the rows of these workers, given for all workers as to `from_rows`."""
        own = FutureMemory.from_rows(cached[workers], remaining[workers], self.rules[workers])
        self.remaining[workers], self.longest[workers], self.total[workers] = own.remaining, own.longest, own.total

    def peaks_with(self, workers: Ints, cached: Floats, remaining: Floats) -> Floats:
        """Return the peaks in tokens, (pairs,), if one more row with these tokens joined the worker of each pair."""
        parts = (slice(first, first + PAIRS_AT_ONCE) for first in range(0, len(workers), PAIRS_AT_ONCE))
        peaks = (self._peaks_with(workers[part], cached[part], remaining[part]) for part in parts)
        return np.concatenate([np.empty(0), *peaks])

    def _peaks_with(self, workers: Ints, cached: Floats, remaining: Floats) -> Floats:
        rows_remaining, longest, rules = self.remaining[workers], self.longest[workers], self.rules[workers]
        cached, remaining = cached[:, None], remaining[:, None]
        count = np.arange(1, rows_remaining.shape[1] + 1)
        outlived = rows_remaining <= remaining  # which rows end while the joiner still runs
        at_ends = (count + outlived) * (np.where(outlived, np.maximum(longest, cached), longest) + rows_remaining)
        rows_left = np.count_nonzero(~outlived, axis=1)  # how many rows still run when the joiner ends
        longest_left = np.where(rows_left > 0, longest[np.arange(len(rows_left)), rows_left - 1], 0.0)
        at_own_end = (rows_left + 1) * (np.maximum(longest_left, cached[:, 0]) + remaining[:, 0])
        if rules.paged.any():
            paged, total, overhead = rules.paged, self.total[workers], rules.overhead
            paged_ends = total + outlived * cached + (count + outlived) * (rows_remaining + overhead[:, None])
            at_ends = np.where(paged[:, None], paged_ends, at_ends)
            total_left = np.where(rows_left > 0, total[np.arange(len(rows_left)), rows_left - 1], 0.0)
            paged_end = total_left + cached[:, 0] + (rows_left + 1) * (remaining[:, 0] + overhead)
            at_own_end = np.where(paged, paged_end, at_own_end)
        at_ends, at_own_end = rules.held(at_ends, count + outlived), rules.held(at_own_end, rows_left + 1)
        return np.asarray(np.maximum(np.max(at_ends, axis=1, initial=0.0), at_own_end), np.float64)


def peak_tokens(cached: Floats, remaining: Floats, memory: KvMemory) -> float:
    """Return the peak of the memory of one worker's rows, in tokens."""
    order = np.argsort(-remaining, kind="stable")
    count, remaining, cached = np.arange(1, len(order) + 1), remaining[order], cached[order]
    if memory.paged:
        tokens = np.cumsum(cached) + count * (remaining + memory.row_overhead_tokens)
    else:
        tokens = count * (np.maximum.accumulate(cached) + remaining)
    if memory.windowed_bytes:
        tokens = MemoryRules.of([memory]).held(tokens[None], count)
    return float(tokens.max())


FIELDS = attrgetter("length", "predicted", "predicted_upper", "predicted_at", "limit")
EARLIER = attrgetter("arrived_at", "generated")  # what a request was when it came to its worker


@dataclass(frozen=True, slots=True)
class RowRequests:
    """The requests of one worker's rows, and their FIELDS as an array (rows, 5).

    Reading the fields takes longest, because the requests of a large fleet are not in the processor's cache.
    """

    requests: Sequence[Request]
    fields: Floats

    @classmethod
    def of(cls, worker: Worker, earlier: "RowRequests | None") -> "RowRequests":
        """Return the requests of a worker's rows: `earlier`, those of the last decision, if none has changed."""
        requests = [row.request for row in worker.rows]
        if earlier and len(requests) == len(earlier.requests) and all(map(is_, requests, earlier.requests)):
            return earlier
        fields = np.fromiter(chain.from_iterable(map(FIELDS, requests)), np.float64, 5 * len(requests))
        return cls(requests, fields.reshape(-1, 5))


class FleetArrays:
    """The fleet as arrays: each element of an array, and each row of a matrix, belongs to one worker.

    Lengths are in tokens, costs in seconds; p1..p4 and d1..d4 are coefficients of SCLS Eq. (3) and (4). `size` counts
    rows, `joiners` those of this decision; `longest` and `total` are cached tokens, of the longest row and of all rows.
    """

    def __init__(self, workers: Sequence[Worker], earlier: "FleetArrays | None" = None) -> None:
        """Read the fleet; what has not changed since an `earlier` decision is taken from its arrays."""
        self.workers = workers
        self.names = [worker.name for worker in workers]
        self.capacity = np.array([worker.memory.capacity_tokens for worker in workers], np.float64)
        self.most_peak = self.capacity  # the tokens that the predicted peak may reach
        self.most_rows = np.array([worker.memory.most_rows for worker in workers], np.float64)
        self.rules = MemoryRules.of([worker.memory for worker in workers])
        curves = [linearized(worker.costs) for worker in workers]
        self.p1, self.p2, self.p3, self.p4 = np.array([curve.prefill for curve in curves], np.float64).T
        self.d1, self.d2, self.d3, self.d4 = np.array([curve.decode for curve in curves], np.float64).T
        self.size = np.array([len(worker.rows) for worker in workers])
        self.joiners = np.zeros(len(workers), np.int64)
        known: dict[str, RowRequests] = dict(zip(earlier.names, earlier._requests, strict=False)) if earlier else {}
        self._requests: list[RowRequests] = [RowRequests.of(worker, known.get(worker.name)) for worker in workers]
        self._read_rows()

    def __len__(self) -> int:
        return len(self.workers)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, whose next decision reads all rows anew: forecasts copy policies often."""
        return {**self.__dict__, "_requests": []}

    def _read_rows(self) -> None:
        """Set the cached and the remaining tokens of every row, (workers, rows), 0 and -inf where there is no row."""
        rows = chain.from_iterable(worker.rows for worker in self.workers)
        shape = len(self), int(self.size.max()) + 1
        self.cached, self.remaining = np.zeros(shape), np.full(shape, -np.inf)
        generated = np.fromiter(map(attrgetter("generated"), rows), np.float64, int(self.size.sum()))
        fields = np.concatenate([known.fields for known in self._requests])
        prompt, predicted, upper, predicted_at, limit = fields.T
        median, _ = conditional_totals(predicted, upper, generated, predicted_at)
        is_row = np.arange(shape[1]) < self.size[:, None]
        self.cached[is_row] = prompt + generated
        self.remaining[is_row] = np.minimum(median, limit) - generated
        self.longest, self.total = self.cached.max(axis=1), self.cached.sum(axis=1)
        self._future: FutureMemory | None = None
        self._changed: set[int] = set()  # the workers whose rows are others than in `_future`

    def fields_of_rows(self) -> Floats:
        """Return FIELDS and EARLIER of the running rows' requests, (7, workers, rows).

        Where there is no row, and for joiners, they are 1 but for the arrival, which is at minus infinity.
        """
        running = np.array([len(known.requests) for known in self._requests])
        requests = chain.from_iterable(known.requests for known in self._requests)
        earlier = np.fromiter(chain.from_iterable(map(EARLIER, requests)), np.float64, 2 * int(running.sum()))
        fields = np.concatenate([known.fields for known in self._requests])
        values = np.ones((7, *self.cached.shape))
        values[5] = -np.inf
        values[:, np.arange(values.shape[2]) < running[:, None]] = np.hstack([fields, earlier.reshape(-1, 2)]).T
        return values

    @property
    def read_length(self) -> Floats:
        """Return the cached tokens that an iteration reads for each row: the longest row's, or if paged the mean."""
        mean = self.total / np.maximum(self.size, 1)
        return np.asarray(np.where(self.rules.paged, mean, self.longest), np.float64)

    @property
    def shared_tokens(self) -> Floats:
        """Return the tokens that share an iteration's fixed time: the capacity, or `most_rows` mean rows if fewer."""
        mean_row = self.total.sum() / max(1, int(self.size.sum()))
        of_rows = self.most_rows * mean_row
        return np.asarray(np.where(of_rows > 0, np.minimum(self.capacity, of_rows), self.capacity), np.float64)

    def limit_rows(self) -> None:
        """Limit each worker to the rows that keep it busy; more rows would mainly make every iteration longer."""
        fixed_s, row_s = self.d4 + self.d3 * self.read_length, self.d2 + self.d1 * self.read_length
        enough = BUSY_SHARE / (1 - BUSY_SHARE) * fixed_s / np.maximum(row_s, TINY_S)
        self.most_rows = np.minimum(self.most_rows, np.maximum(LEAST_ROWS, enough))

    def let_peak_reach(self, factors: Floats) -> None:
        """Let the predicted peak of each worker reach this multiple of its memory."""
        self.most_peak = factors * self.capacity

    def step_s(self) -> Floats:
        """Return the seconds of each worker's next iteration, as if it had at least one row."""
        size, length = np.maximum(self.size, 1), self.read_length
        return np.asarray(self.d4 + self.d3 * length + size * (self.d2 + self.d1 * length), np.float64)

    def speed_share(self) -> Floats:
        """Return each worker's share of the fleet's speed, by the seconds of an iteration that fills its memory."""
        speed = 1 / (self.d4 + self.d2 + self.d1 * self.shared_tokens)
        return np.asarray(speed / speed.sum(), np.float64)

    def turnover_s(self) -> Floats:
        """Return the seconds in which each worker's rows are predicted to end, on average; 0 without rows."""
        remaining = np.where(self.remaining > 0, self.remaining, 0.0).sum(axis=1)
        return np.asarray(self.step_s() * remaining / np.maximum(self.size, 1), np.float64)

    def used_tokens(self) -> Floats:
        """Return the tokens of memory that each worker's rows need, preempted rows that wait there included."""
        own = self.total + self.size * self.rules.overhead
        return self.rules.held(np.where(self.rules.paged, own, self.size * self.longest), self.size)

    def join_s(self) -> Floats:
        """Return the seconds that the running rows of each worker lose to one join, summed over the rows.

        Each row loses the fixed part of a prefill, which does not depend on the number of joiners.
        """
        return np.asarray((self.size - self.joiners) * (self.p4 + self.p3 * self.read_length), np.float64)

    def fits_one_more(self, worker: int, prefill: float) -> bool:
        """Return `fits_beside` for one worker and one length, ten times as fast; used for single joins."""
        memory, size = self.workers[worker].memory, int(self.size[worker])
        if not size:
            return memory.held(prefill) < memory.capacity_tokens
        if memory.paged:
            own = float(self.total[worker]) + prefill
            tokens = own + (size + 1) * (ROW_GROWTH_TOKENS + memory.row_overhead_tokens)
        else:
            tokens = (size + 1) * (max(float(self.longest[worker]), prefill) + ROW_GROWTH_TOKENS)
        return memory.held(tokens, size + 1) <= memory.capacity_tokens and size < float(self.most_rows[worker])

    def fits_beside(self, workers: Ints, prefill: Floats) -> NDArray[np.bool_]:
        """Return whether rows of `prefill` tokens, (workers, n) or (1, n), fit now beside the rows of these workers."""
        columns, rules = (self.size, self.capacity, self.longest, self.most_rows), self.rules[workers]
        size, capacity, longest, most_rows = (column[workers, None] for column in columns)
        tokens = (size + 1) * (np.maximum(longest, prefill) + ROW_GROWTH_TOKENS)
        if rules.paged.any():
            own = self.total[workers, None] + prefill + (size + 1) * (ROW_GROWTH_TOKENS + rules.overhead[:, None])
            tokens = np.where(rules.paged[:, None], own, tokens)
        fits = np.where(size > 0, rules.held(tokens, size + 1) <= capacity, rules.held(prefill) < capacity)
        return np.asarray(fits & (size < most_rows), np.bool_)

    def peak_with(self, worker: int, prefill: float, remaining: float) -> float:
        """Return the peak of a worker's memory, in tokens, if one more row with these tokens joined."""
        size = int(self.size[worker])
        cached = np.concatenate((self.cached[worker, :size], (prefill,)))  # `np.append` takes five times as long
        rows_remaining = np.concatenate((self.remaining[worker, :size], (remaining,)))
        return peak_tokens(cached, rows_remaining, self.workers[worker].memory)

    @property
    def future(self) -> FutureMemory:
        """Return the rows of all workers as `FutureMemory`; only workers with new joiners are sorted again."""
        if self._future is None:
            self._future = FutureMemory.from_rows(self.cached, self.remaining, self.rules)
        elif self._changed:
            self._future.replace(np.array(sorted(self._changed)), self.cached, self.remaining)
        self._changed.clear()
        return self._future

    def join(self, worker: int, request: Request) -> None:
        """Add a request to the worker's rows."""
        self.add_row(worker, request.prefill, request.remaining)
        self.joiners[worker] += 1

    def add_row(self, worker: int, cached: float, remaining: float) -> None:
        """Add a row with these tokens to the worker's rows."""
        row = int(self.size[worker])
        if row == self.cached.shape[1]:
            self.cached = np.pad(self.cached, ((0, 0), (0, row)))
            self.remaining = np.pad(self.remaining, ((0, 0), (0, row)), constant_values=-np.inf)
            self._future = None
        self.cached[worker, row], self.remaining[worker, row] = cached, remaining
        self.longest[worker] = max(self.longest[worker], cached)
        self.total[worker] += cached
        self.size[worker] += 1
        self._changed.add(worker)

    def leave(self, worker: int, row: int) -> tuple[float, float]:
        """Remove a row; the last one gets its place. Return its cached and its remaining tokens."""
        last = int(self.size[worker]) - 1
        left = float(self.cached[worker, row]), float(self.remaining[worker, row])
        for column, none in ((self.cached, 0.0), (self.remaining, -np.inf)):
            column[worker, row] = column[worker, last]
            column[worker, last] = none
        self.longest[worker] = self.cached[worker].max()
        self.total[worker] -= left[0]
        self.size[worker] -= 1
        self._changed.add(worker)
        return left
