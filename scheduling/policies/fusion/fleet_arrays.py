"""The workers and their running rows as arrays, what joins them while a decision is made, and their memory to come.

The peak of a continuous batch's memory over its predicted future is Past-Future's, for rows padded to the longest. All
rows grow by one token in each iteration, the cache is a rectangle of rows times the tokens of the longest, and a row's
memory is free once it ends. So memory is largest just before some row ends. With c cached and r remaining tokens a row
and rows in order r1 ≥ r2 ≥ …, k rows are left when the k-th ends, and the longest has max(c1..ck) + rk tokens cached:

    peak = max over k of k · (max(c1..ck) + rk)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import overload

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.linearized_costs import linearized
from scheduling.policies.continuous_constants import ROW_GROWTH_TOKENS
from scheduling.policies.fusion.conditional_length import conditional_totals
from scheduling.policy import Worker
from scheduling.request import Request


@dataclass(frozen=True, slots=True)
class FutureMemory:
    """The rows of several workers in order of remaining tokens, most first; where a worker has no row, -inf remain."""

    remaining: Floats  # (workers, rows)
    longest: Floats  # (workers, rows): most cached tokens of a row and of those before it in that order

    @classmethod
    def of(cls, cached: Floats, remaining: Floats) -> "FutureMemory":
        """From (workers, rows) in any order; `remaining` is -inf where there is no row."""
        order = np.argsort(-remaining, axis=1, kind="stable")
        worker = np.arange(len(order))[:, None]
        return cls(remaining[worker, order], np.maximum.accumulate(cached[worker, order], axis=1))

    def peaks_with(self, workers: Ints, cached: Floats, remaining: Floats) -> Floats:
        """Peaks in tokens if one more row of so many tokens joined the worker, for many pairs (pairs,) of both."""
        rows_remaining, longest = self.remaining[workers], self.longest[workers]
        cached, remaining = cached[:, None], remaining[:, None]
        count = np.arange(1, rows_remaining.shape[1] + 1)
        outlived = rows_remaining <= remaining  # rows that end while the joiner still runs
        at_ends = (count + outlived) * (np.where(outlived, np.maximum(longest, cached), longest) + rows_remaining)
        rows_left = np.count_nonzero(~outlived, axis=1)  # rows that still run when the joiner ends
        longest_left = np.where(rows_left > 0, longest[np.arange(len(rows_left)), rows_left - 1], 0.0)
        at_own_end = (rows_left + 1) * (np.maximum(longest_left, cached[:, 0]) + remaining[:, 0])
        return np.asarray(np.maximum(np.max(at_ends, axis=1, initial=0.0), at_own_end), np.float64)


def peak_tokens(cached: Floats, remaining: Floats) -> float:
    """The peak of one worker's rows."""
    order = np.argsort(-remaining, kind="stable")
    longest = np.maximum.accumulate(cached[order])
    return float(np.max(np.arange(1, len(order) + 1) * (longest + remaining[order])))


class FleetArrays:
    """One element of each array, or row of each matrix, is a worker; lengths in tokens, costs in seconds.

    p1..p4 and d1..d4 are the coefficients of SCLS Eq. (3) and (4) of each worker, `size` the number of its rows and
    `joiners` of those that joined in this decision, `longest` the cached tokens of its longest row.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self.names = [worker.name for worker in workers]
        self.capacity = np.array([worker.memory.capacity_tokens for worker in workers], np.float64)
        curves = [linearized(worker.costs) for worker in workers]
        self.p1, self.p2, self.p3, self.p4 = np.array([curve.prefill for curve in curves], np.float64).T
        self.d1, self.d2, self.d3, self.d4 = np.array([curve.decode for curve in curves], np.float64).T
        self.size = np.array([len(worker.rows) for worker in workers])
        self.joiners = np.zeros(len(workers), np.int64)
        self._read_rows()

    def __len__(self) -> int:
        return len(self.workers)

    def _read_rows(self) -> None:
        """Cached and reserved remaining tokens of every row, (workers, rows); -inf remaining where there is no row."""
        rows = [row for worker in self.workers for row in worker.rows]
        requests = [row.request for row in rows]
        shape = len(self), int(self.size.max()) + 1
        self.cached, self.remaining = np.zeros(shape), np.full(shape, -np.inf)
        generated = np.fromiter(map(attrgetter("generated"), rows), np.float64, len(rows))
        names = ("length", "predicted", "predicted_upper", "limit")
        columns = (np.fromiter(map(attrgetter(name), requests), np.float64, len(rows)) for name in names)
        prompt, predicted, upper, limit = columns
        median, upper = conditional_totals(predicted, upper, generated)
        median, upper = np.minimum(median, limit) - generated, np.minimum(upper, limit) - generated
        is_row = np.arange(shape[1]) < self.size[:, None]
        self.cached[is_row] = prompt + generated
        self.remaining[is_row] = reserved(median, upper, np.repeat(self.size, self.size))
        self.longest = self.cached.max(axis=1)
        self._future: FutureMemory | None = None

    def step_s(self) -> Floats:
        """Seconds of each worker's next iteration, taken to have one row at least."""
        size = np.maximum(self.size, 1)
        return np.asarray(self.d4 + self.d3 * self.longest + size * (self.d2 + self.d1 * self.longest), np.float64)

    def join_s(self) -> Floats:
        """Seconds that the running rows of each worker lose to one join, summed over the rows.

        That is, for each row, the part of a prefill that is the same however many requests join at once.
        """
        return np.asarray((self.size - self.joiners) * (self.p4 + self.p3 * self.longest), np.float64)

    def fits_one_more(self, worker: int, prefill: float) -> bool:
        """Whether a row of so many tokens fits beside the worker's rows now, whatever they grow to later."""
        if not self.size[worker]:
            return bool(prefill < self.capacity[worker])
        row_tokens = max(self.longest[worker], prefill) + ROW_GROWTH_TOKENS
        return bool((self.size[worker] + 1) * row_tokens <= self.capacity[worker])

    @property
    def future(self) -> FutureMemory:
        """The rows of all workers in the order in which they will end; computed again only after a join."""
        if self._future is None:
            self._future = FutureMemory.of(self.cached, self.remaining)
        return self._future

    def future_of(self, workers: Ints) -> FutureMemory:
        """The same for these workers only."""
        return FutureMemory.of(self.cached[workers], self.remaining[workers])

    def join(self, worker: int, request: Request) -> None:
        """Count a request among the worker's rows."""
        row, prefill = int(self.size[worker]), request.prefill
        remaining = reserved(request.remaining, request.remaining_upper, row + 1)
        if row == self.cached.shape[1]:
            self.cached = np.pad(self.cached, ((0, 0), (0, row)))
            self.remaining = np.pad(self.remaining, ((0, 0), (0, row)), constant_values=-np.inf)
        self.cached[worker, row], self.remaining[worker, row] = prefill, remaining
        self.longest[worker] = max(self.longest[worker], prefill)
        self.size[worker] += 1
        self.joiners[worker] += 1
        self._future = None


@overload
def reserved(median: float, upper: float, size: int) -> float: ...
@overload
def reserved(median: Floats, upper: Floats, size: Ints) -> Floats: ...
def reserved(median: float | Floats, upper: float | Floats, size: int | Ints) -> float | Floats:
    """Remaining tokens to reserve for one row of a batch of `size` rows: the median and 1/√size of the way to `upper`.

    The errors of the rows' predictions are independent, so their sum spreads √size times as far as one of them, and
    each row needs 1/√size of its own spread.
    """
    share: float | Floats = 1 / np.sqrt(size)
    return median + (upper - median) * share
