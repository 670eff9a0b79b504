"""A continuous batch on a simulated engine: rows enter, decode together and leave one by one.

Nothing is stepped token by token. Between two events the rows stay the same, so a stretch of k iterations over n rows
whose cached length grows from l takes Σ from i = 1 to k of (a·(l + i) + b), a = d1·n + d3, b = d2·n + d4: a closed
form, and a square root inverts it. Iterations are counted from the start of the batch, so what a row has generated,
what it caches and when it will be done all follow from that one count.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduling.prefill_groups import prefill_groups
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts, Tokens

ROUNDING_S = 1e-7  # instants that differ by less are the same; no iteration is so short


@dataclass(slots=True)
class LiveRow:
    """A row of a continuous batch."""

    request: Request
    stops_at: int  # tokens generated in all when it leaves
    joined_at: float
    base: int  # tokens generated = base + the batch's iteration

    @property
    def ends_iteration(self) -> int:
        """The iteration after which this row is done."""
        return self.stops_at - self.base

    @property
    def offset(self) -> int:
        """Cached tokens = offset + the batch's iteration."""
        return self.request.length + self.base


class ContinuousBatch:
    """Rows that decode together; exact at instant `at`, which is always between two iterations."""

    def __init__(self, costs: EngineCosts, capacity_tokens: int) -> None:
        self.costs = costs
        self.at = 0.0
        self.busy_s = 0.0
        self.iteration = 0
        self.rows: dict[str, LiveRow] = {}
        self.prefilling: dict[str, LiveRow] = {}  # with chunked prefill: in memory, not decoding yet
        self.pace = 1.0
        self.tokens = Tokens()
        self._capacity_tokens = capacity_tokens
        self._chunks_end = 0  # the iteration after which `prefilling` is done
        self._chunk_s = 0.0
        self._ends: list[tuple[int, str]] = []  # entries of rows that were made to leave stay until they surface
        self._longest = 0  # the largest offset of any row in memory
        self._offsets = 0  # the sum of the offsets of decoding rows
        self._event: int | None = None  # what next_event gave, until rows change

    @property
    def size(self) -> int:
        """Rows in memory."""
        return len(self.rows) + len(self.prefilling)

    @property
    def length(self) -> int:
        """Cached tokens of the longest row."""
        return self._longest + self.iteration

    @property
    def may_join(self) -> bool:
        """Whether the next group's prefill can begin now."""
        return not self.prefilling

    def holds(self, requests: Sequence[Request]) -> bool:
        """Whether these may join: all rows and one more token each fit."""
        size = self.size + len(requests)
        if not self.costs.padded:
            cached = self._cached() + sum(request.prefill for request in requests)
            return cached + size <= self._capacity_tokens
        longest = max([request.prefill for request in requests], default=0)
        if self.size:
            longest = max(longest, self.length)
        return size * (longest + 1) <= self._capacity_tokens

    def join(self, requests: Sequence[Request], stops_at: Sequence[int], now: float) -> None:
        """Prefill these rows, those of similar length together; they decode from the next iteration on, or after the
        last chunk."""
        curves, longest = self.costs.curves, max(request.prefill for request in requests)
        prefill_s = self.pace * sum(
            curves.prefill_s(len(group), max(request.prefill for request in group))
            for group in prefill_groups(requests, curves)
        )
        chunks = math.ceil(longest / self.costs.chunk_tokens) if self.costs.chunk_tokens and self.rows else 0
        if self.rows:
            prefill_s += self.costs.join_s
        padding = self._padding()
        for request, stop in zip(requests, stops_at, strict=True):
            self.prefilling[request.id] = LiveRow(request, stop, now, request.generated - self.iteration)
        self._measure()
        self.tokens.pad += max(0, self._padding() - padding)
        if chunks:
            self._chunks_end = self.iteration + chunks
            self._chunk_s = prefill_s / chunks
        else:
            self._spend(prefill_s)
            self._activate()

    def leave(self, request_id: str) -> Request:
        """Take a row out; the request comes back with what it has generated."""
        row = self.rows.pop(request_id)
        self._rows_left()
        return replace(row.request, generated=row.base + self.iteration)

    def next_event(self) -> int:
        """The iteration after which a row is done, the last chunk is prefilled, or memory does not hold one more."""
        if self._event is None:
            while self._stale(self._ends[0]):
                heapq.heappop(self._ends)
            self._event = min(self._ends[0][0], self._last_that_fits())
            if self.prefilling:
                self._event = min(self._event, self._chunks_end)
        return self._event

    def seconds(self, iterations: int) -> float:
        """How long the next iterations take."""
        a, b = self._slope_and_base()
        return self.pace * (iterations * b + a * iterations * (iterations + 1) / 2) + iterations * self._chunk_s

    def iteration_at(self, now: float) -> int:
        """The last iteration that is over at `now`, if nothing happens before."""
        elapsed_s = now - self.at + ROUNDING_S
        if elapsed_s <= 0:
            return self.iteration
        a, b = self._slope_and_base()
        linear = self.pace * (b + a / 2) + self._chunk_s
        square = self.pace * a
        if not square:
            return self.iteration + int(elapsed_s / linear)
        return self.iteration + int((math.sqrt(linear * linear + 2 * square * elapsed_s) - linear) / square)

    def run(self, until: int) -> None:
        """Decode to the end of this iteration, before which nothing happens."""
        iterations = until - self.iteration
        if iterations <= 0:
            return
        size = len(self.rows)
        self._spend(self.seconds(iterations))
        per_row = iterations * self.iteration + iterations * (iterations + 1) // 2
        useful = size * per_row + iterations * self._offsets
        self.tokens.valid += size * iterations
        self.tokens.useful_reads += useful
        self.tokens.reads += size * (iterations * self._longest + per_row) if self.costs.padded else useful
        self.tokens.iterations += iterations
        self.tokens.row_iterations += size * iterations
        self.iteration = until
        if self.prefilling and until >= self._chunks_end:
            self._activate()

    def done(self) -> list[LiveRow]:
        """The rows whose last token is out; they leave."""
        gone = []
        while self._ends and (self._stale(self._ends[0]) or self._ends[0][0] <= self.iteration):
            entry = heapq.heappop(self._ends)
            if not self._stale(entry):
                gone.append(self.rows.pop(entry[1]))
        if gone:
            self._rows_left()
        return gone

    def out_of_memory(self) -> bool:
        """Whether not even one more iteration fits."""
        return bool(self.rows) and self._last_that_fits() <= self.iteration

    def newest(self) -> str:
        """The row that joined last."""
        return next(reversed(self.rows))

    def in_memory(self) -> list[LiveRow]:
        """Every row, those being prefilled included."""
        return [*self.rows.values(), *self.prefilling.values()]

    def _last_that_fits(self) -> int:
        if self.costs.padded:
            return self._capacity_tokens // self.size - self._longest
        return self.iteration + (self._capacity_tokens - self._cached()) // len(self.rows)

    def _cached(self) -> int:
        """Tokens in memory without padding."""
        decoding = self._offsets + len(self.rows) * self.iteration
        return decoding + sum(row.request.prefill for row in self.prefilling.values())

    def _slope_and_base(self) -> tuple[float, float]:
        """Seconds that an iteration takes more for each further cached token a row, and now."""
        d1, d2, d3, d4 = self.costs.curves.decode
        size = len(self.rows)
        a = d1 * size + d3
        offset = self._longest if self.costs.padded else self._offsets / size
        return a, a * (offset + self.iteration) + d2 * size + d4

    def _activate(self) -> None:
        for request_id, row in self.prefilling.items():
            row.base = row.request.generated - self.iteration
            self.rows[request_id] = row
            heapq.heappush(self._ends, (row.ends_iteration, request_id))
        self.prefilling.clear()
        self._chunk_s = 0.0
        self._measure()

    def _rows_left(self) -> None:
        self._measure()
        if self.prefilling and not self.rows:  # nobody is left whom the rest of the prefill would stall
            self._spend((self._chunks_end - self.iteration) * self._chunk_s)
            self._activate()

    def _measure(self) -> None:
        self._event = None
        self._longest = max((row.offset for row in self.in_memory()), default=-self.iteration)
        self._offsets = sum(row.offset for row in self.rows.values())

    def _spend(self, seconds: float) -> None:
        self.at += seconds
        self.busy_s += seconds

    def _padding(self) -> int:
        """Pad tokens in memory."""
        return sum(self._longest - row.offset for row in self.in_memory()) if self.costs.padded else 0

    def _stale(self, entry: tuple[int, str]) -> bool:
        row = self.rows.get(entry[1])
        return row is None or row.ends_iteration != entry[0]
