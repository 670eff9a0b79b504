"""Which waiting batch goes next: highest response ratio (Magnus III-E) or first come, first served, decided from `now`.

The waiting batches are columns of numbers, one row each, so that a decision over thousands takes microseconds. Serving
times are estimated once for each kind of worker and again only for batches that changed since.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from scheduling.adaptive_batching import AdaptiveBatch
from scheduling.costs import Floats, ServingTime

SHORTEST_S = 1e-9  # keeps a response ratio finite when a batch is estimated to take no time


@dataclass(frozen=True, slots=True)
class Choice:
    """The batch that a kind of worker would serve next; of two choices the greater `merit` goes first."""

    batch: AdaptiveBatch
    estimated_s: float
    merit: tuple[float, float]


@dataclass(slots=True)
class EstimateColumn:
    """Serving times of the batches on one kind of worker, right for every row up to change number `as_of`."""

    serve_s: Floats
    as_of: int


class BatchTable:
    """The waiting batches as columns; an unused row arrives never."""

    def __init__(self, by_response_ratio: bool) -> None:
        self._by_response_ratio = by_response_ratio
        self._batches: dict[int, AdaptiveBatch] = {}  # by row, as in every column
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._arrived_at = np.empty(0)
        self._tokens = np.empty(0)
        self._least_tokens = np.empty(0)
        self._shape = np.empty((3, 0), dtype=np.int64)  # batch size, length, generation length
        self._changed_at = np.empty(0, dtype=np.int64)
        self._changes = 0
        self._estimates: dict[ServingTime, EstimateColumn] = {}

    def update(self, changed: Iterable[int], batches: Mapping[int, AdaptiveBatch]) -> None:
        """Take over the batches of these numbers as they are now; those no longer among `batches` are gone."""
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
            self._tokens[row] = batch.tokens
            self._least_tokens[row] = batch.least_tokens
            self._shape[:, row] = len(batch.requests), batch.length, batch.generation_length
            self._changed_at[row] = self._changes

    def choose(self, costs: ServingTime, capacity_tokens: float, now: float, whole: bool = True) -> Choice | None:
        """The next batch for a worker of such costs and capacity; with `whole` False one request of it must fit."""
        if not self._batches:
            return None
        merits = self._merits(costs, now)
        merits[(self._tokens if whole else self._least_tokens) > capacity_tokens] = -np.inf
        best = merits.max()
        if best == -np.inf:
            return None
        row = min((int(row) for row in np.flatnonzero(merits == best)), key=self._seniority)
        estimated_s = float(self._estimates[costs].serve_s[row])
        return Choice(self._batches[row], estimated_s, (float(best), -estimated_s))

    def in_order(self, costs: ServingTime, now: float) -> list[tuple[AdaptiveBatch, float, float]]:
        """Every batch with its estimated serving time and response ratio, in serving order."""
        merits = self._merits(costs, now)
        serve_s = self._estimates[costs].serve_s
        rows = sorted(self._batches, key=lambda row: (-merits[row], *self._seniority(row)))
        listed = []
        for row in rows:
            batch = self._batches[row]
            ratio = 1 + (now - batch.arrived_at) / max(SHORTEST_S, serve_s[row])
            listed.append((batch, float(serve_s[row]), float(ratio)))
        return listed

    def forget_costs(self, known: Iterable[ServingTime]) -> None:
        """Drop the estimates of all costs but these."""
        keep = set(known)
        for costs in [costs for costs in self._estimates if costs not in keep]:
            del self._estimates[costs]

    def _merits(self, costs: ServingTime, now: float) -> Floats:
        serve_s = self._estimate(costs)
        waited_s = now - self._arrived_at
        return waited_s / np.maximum(SHORTEST_S, serve_s) if self._by_response_ratio else waited_s

    def _estimate(self, costs: ServingTime) -> Floats:
        known = self._estimates.setdefault(costs, EstimateColumn(np.empty(0), as_of=-1))
        missing = len(self._arrived_at) - len(known.serve_s)
        if missing:
            known.serve_s = np.concatenate([known.serve_s, np.ones(missing)])
        stale = np.flatnonzero(self._changed_at > known.as_of)
        if len(stale):
            known.serve_s[stale] = costs.serve_many_s(*self._shape[:, stale])
        known.as_of = self._changes
        return known.serve_s

    def _seniority(self, row: int) -> tuple[float, int]:
        batch = self._batches[row]
        return batch.arrived_at, batch.number

    def _clear(self, row: int) -> None:
        del self._batches[row]
        self._arrived_at[row] = np.inf
        self._changed_at[row] = -1
        self._free.append(row)

    def _grow(self) -> int:
        """Double the rows; the first new one is for use at once."""
        used = len(self._arrived_at)
        more = max(64, used)
        self._arrived_at = np.concatenate([self._arrived_at, np.full(more, np.inf)])
        self._tokens = np.concatenate([self._tokens, np.zeros(more)])
        self._least_tokens = np.concatenate([self._least_tokens, np.zeros(more)])
        self._shape = np.concatenate([self._shape, np.ones((3, more), dtype=np.int64)], axis=1)
        self._changed_at = np.concatenate([self._changed_at, np.full(more, -1)])
        self._free += reversed(range(used + 1, used + more))
        return used
