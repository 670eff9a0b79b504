"""Chooses the waiting batch to serve next at `now`: by highest response ratio (Magnus III-E), or by arrival.

The waiting batches are rows of a table in numpy columns, so that a decision over thousands of them takes microseconds.
Serving times are estimated once for each kind of worker, and again only for batches that have changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from scheduling.adaptive_batching import AdaptiveBatch
from scheduling.costs import Floats, ServingTime
from scheduling.kv_memory import KvMemory, held_tokens

SHORTEST_S = 1e-9  # the least divisor of a response ratio; any value far below the seconds of an iteration works


@dataclass(frozen=True, slots=True)
class NextBatch:
    """The batch that a worker of one kind would serve next; of two kinds' batches, the greater `priority` goes first.

    `priority` is (response ratio or waiting time, negated estimate of the serving time).
    """

    batch: AdaptiveBatch
    estimated_s: float
    priority: tuple[float, float]


@dataclass(slots=True)
class ServingTimeColumn:
    """The table's serving times on one kind of worker; they are current for rows last changed by `up_to_change`."""

    serve_s: Floats
    up_to_change: int


class BatchScheduler:
    """Magnus's batch scheduler: a table of the waiting batches. An unused row has an infinite arrival time."""

    def __init__(self, by_response_ratio: bool) -> None:
        """Make an empty table; batches are served by response ratio, or in order of arrival if that is false."""
        self._by_response_ratio = by_response_ratio
        self._batches: dict[int, AdaptiveBatch] = {}  # the batches by their row in the table
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._arrived_at = np.empty(0)
        self._reserved_tokens = np.empty(0)
        self._smallest_request_tokens = np.empty(0)
        self._shape = np.empty((3, 0), dtype=np.int64)  # size, length and generation length of each batch
        self._changed_at = np.empty(0, dtype=np.int64)
        self._changes = 0
        self._estimates: dict[ServingTime, ServingTimeColumn] = {}

    def update(self, changed: Iterable[int], batches: Mapping[int, AdaptiveBatch]) -> None:
        """Update the rows of the batches with these numbers; clear the rows of batches that are not in `batches`."""
        self._changes += 1
        for number in sorted(changed):
            batch = batches.get(number)
            row = self._row_of.get(number)
            if batch is None:
                if row is not None:
                    self._clear(row)
                    del self._row_of[number]
                continue
            if row is None:
                row = self._row_of[number] = self._free.pop() if self._free else self._grow()
            self._batches[row] = batch
            self._arrived_at[row] = batch.arrived_at
            self._reserved_tokens[row] = batch.reserved_tokens
            self._smallest_request_tokens[row] = batch.smallest_request_tokens
            self._shape[:, row] = len(batch.requests), batch.length, batch.generation_length
            self._changed_at[row] = self._changes

    def next_batch(
        self, costs: ServingTime, memory: KvMemory | None, now: float, whole: bool = True
    ) -> NextBatch | None:
        """Return the next batch that fits the memory, as a whole or, if not `whole`, with at least one request."""
        if not self._batches:
            return None
        priorities = self._priorities(costs, now)
        if memory is not None:
            tokens, rows = (self._reserved_tokens, self._shape[0]) if whole else (self._smallest_request_tokens, 1)
            held = held_tokens(tokens, rows, memory.windowed_share, memory.window_tokens)
            priorities[held > memory.capacity_tokens] = -np.inf
        best = priorities.max()
        if best == -np.inf:
            return None
        row = min((int(row) for row in np.flatnonzero(priorities == best)), key=self._tie_break)
        estimated_s = float(self._estimates[costs].serve_s[row])
        return NextBatch(self._batches[row], estimated_s, (float(best), -estimated_s))

    def serving_order(self, costs: ServingTime, now: float) -> list[tuple[AdaptiveBatch, float, float]]:
        """Return every batch with its estimated serving time and response ratio, in serving order."""
        priorities = self._priorities(costs, now)
        serve_s = self._estimates[costs].serve_s
        rows = sorted(self._batches, key=lambda row: (-priorities[row], *self._tie_break(row)))
        listed = []
        for row in rows:
            batch = self._batches[row]
            ratio = 1 + (now - batch.arrived_at) / max(SHORTEST_S, serve_s[row])
            listed.append((batch, float(serve_s[row]), float(ratio)))
        return listed

    def keep_estimates_of(self, costs_in_use: Iterable[ServingTime]) -> None:
        """Keep only the estimates by these costs, and drop all others."""
        keep = set(costs_in_use)
        for costs in [costs for costs in self._estimates if costs not in keep]:
            del self._estimates[costs]

    def _priorities(self, costs: ServingTime, now: float) -> Floats:
        serve_s = self._estimate(costs)
        waited_s = now - self._arrived_at
        return waited_s / np.maximum(SHORTEST_S, serve_s) if self._by_response_ratio else waited_s

    def _estimate(self, costs: ServingTime) -> Floats:
        column = self._estimates.setdefault(costs, ServingTimeColumn(np.empty(0), up_to_change=-1))
        missing = len(self._arrived_at) - len(column.serve_s)
        if missing:
            column.serve_s = np.concatenate([column.serve_s, np.ones(missing)])
        stale = np.flatnonzero(self._changed_at > column.up_to_change)
        if len(stale):
            column.serve_s[stale] = costs.serve_many_s(*self._shape[:, stale])
        column.up_to_change = self._changes
        return column.serve_s

    def _tie_break(self, row: int) -> tuple[float, int]:
        batch = self._batches[row]
        return batch.arrived_at, batch.number

    def _clear(self, row: int) -> None:
        del self._batches[row]
        self._arrived_at[row] = np.inf
        self._changed_at[row] = -1
        self._free.append(row)

    def _grow(self) -> int:
        """Double the rows of the table; return the number of the first new row, which the caller uses."""
        used = len(self._arrived_at)
        more = max(64, used)
        self._arrived_at = np.concatenate([self._arrived_at, np.full(more, np.inf)])
        self._reserved_tokens = np.concatenate([self._reserved_tokens, np.zeros(more)])
        self._smallest_request_tokens = np.concatenate([self._smallest_request_tokens, np.zeros(more)])
        self._shape = np.concatenate([self._shape, np.ones((3, more), dtype=np.int64)], axis=1)
        self._changed_at = np.concatenate([self._changed_at, np.full(more, -1)])
        self._free += reversed(range(used + 1, used + more))
        return used
