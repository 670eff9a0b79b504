"""The workers and their running rows as arrays, and what joins them while a decision is made."""

from collections.abc import Sequence
from operator import attrgetter
from typing import overload

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.linearized_costs import linearized
from scheduling.policies.fusion.conditional_length import conditional_totals
from scheduling.policies.fusion.future_memory import FutureMemory
from scheduling.policy import Worker
from scheduling.request import Request

NEXT = 2  # tokens by which rows will have grown when a joiner's first iteration is over


class FleetArrays:
    """One line or element a worker; lengths in tokens."""

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
        """Cached and predicted remaining tokens of every row, -inf remaining where there is none."""
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
        filled = np.arange(shape[1]) < self.size[:, None]
        self.cached[filled] = prompt + generated
        self.remaining[filled] = reserved(median, upper, np.repeat(self.size, self.size))
        self.longest = self.cached.max(axis=1)
        self._future: FutureMemory | None = None

    def step_s(self) -> Floats:
        """Seconds of an iteration as it is now, of one row at least."""
        size = np.maximum(self.size, 1)
        return np.asarray(self.d4 + self.d3 * self.longest + size * (self.d2 + self.d1 * self.longest), np.float64)

    def join_s(self) -> Floats:
        """Seconds that each worker's running rows lose to a join, however many join, added up."""
        return np.asarray((self.size - self.joiners) * (self.p4 + self.p3 * self.longest), np.float64)

    def holds(self, worker: int, prefill: float) -> bool:
        """Whether one row more would fit at once."""
        return bool((self.size[worker] + 1) * (max(self.longest[worker], prefill) + NEXT) <= self.capacity[worker])

    @property
    def future(self) -> FutureMemory:
        """What the rows will take."""
        if self._future is None:
            self._future = FutureMemory.of(self.cached, self.remaining)
        return self._future

    def future_of(self, workers: Ints) -> FutureMemory:
        """What the rows of these workers will take."""
        return FutureMemory.of(self.cached[workers], self.remaining[workers])

    def join(self, worker: int, request: Request) -> None:
        """Count a joiner among the rows."""
        place, prefill = int(self.size[worker]), request.prefill
        remaining = reserved(request.remaining, request.remaining_upper, place + 1)
        if place == self.cached.shape[1]:
            self.cached = np.pad(self.cached, ((0, 0), (0, place)))
            self.remaining = np.pad(self.remaining, ((0, 0), (0, place)), constant_values=-np.inf)
        self.cached[worker, place], self.remaining[worker, place] = prefill, remaining
        self.longest[worker] = max(self.longest[worker], prefill)
        self.size[worker] += 1
        self.joiners[worker] += 1
        self._future = None


@overload
def reserved(median: float, upper: float, size: int) -> float: ...
@overload
def reserved(median: Floats, upper: Floats, size: Ints) -> Floats: ...
def reserved(median: float | Floats, upper: float | Floats, size: int | Ints) -> float | Floats:
    """Remaining tokens to reserve for one of so many rows: their errors are independent, so the spread of their sum is
    that of one row times √size, and each needs 1/√size of its own."""
    share: float | Floats = 1 / np.sqrt(size)
    return median + (upper - median) * share
