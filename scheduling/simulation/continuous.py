"""A continuous batch on a simulated engine: rows enter, decode together and leave one by one.

Nothing is stepped token by token. Between two events the rows stay the same, so a stretch of k iterations over n rows
whose cached length grows from l takes Σ from i = 1 to k of (a·(l + i) + b), a = d1·n + d3, b = d2·n + d4: a closed
form, and a square root inverts it.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduling.request import Request
from scheduling.simulation.engine import EngineCosts, Tokens

ROUNDING_S = 1e-7  # instants that differ by less are the same; no iteration is so short


@dataclass(slots=True)
class LiveRow:
    """A row of a continuous batch; what changes with every iteration follows from the batch's count of them."""

    request: Request
    stops_at: int  # tokens generated in all when it leaves
    joined_at: float
    joined_iteration: int

    @property
    def ends_iteration(self) -> int:
        """The batch's iteration after which this row is done."""
        return self.joined_iteration + self.stops_at - self.request.generated

    @property
    def offset(self) -> int:
        """Cached tokens less the batch's iteration."""
        return self.request.prefill - self.joined_iteration


class ContinuousBatch:
    """Rows that decode together; exact at instant `at`, which is always between two iterations."""

    def __init__(self, costs: EngineCosts) -> None:
        self.costs = costs
        self.at = 0.0
        self.busy_s = 0.0
        self.iteration = 0
        self.rows: dict[str, LiveRow] = {}
        self.prefilling: dict[str, LiveRow] = {}  # with chunked prefill: in memory, not decoding yet
        self.pace = 1.0
        self.tokens = Tokens()
        self._chunks_left = 0
        self._chunk_s = 0.0
        self._ends: list[tuple[int, str]] = []
        self._longest = 0  # the largest offset of any row in memory
        self._offsets = 0  # the sum of offsets of decoding rows

    @property
    def size(self) -> int:
        """Rows in memory."""
        return len(self.rows) + len(self.prefilling)

    @property
    def length(self) -> int:
        """Cached tokens of the longest row."""
        return self._longest + self.iteration

    def holds(self, requests: Sequence[Request], capacity_tokens: int) -> bool:
        """Whether these may join: all rows and one more token each fit."""
        size = self.size + len(requests)
        longest = max([self.length] * (self.size > 0) + [request.prefill for request in requests])
        if self.costs.padded:
            return size * (longest + 1) <= capacity_tokens
        cached = sum(row.offset + self.iteration for row in self.in_memory())
        return cached + sum(request.prefill for request in requests) + size <= capacity_tokens

    def join(self, requests: Sequence[Request], stops_at: Sequence[int], now: float) -> None:
        """Prefill these rows as one group; they decode from the next iteration on, or after the last chunk."""
        prefill_s = self.pace * self.costs.curves.prefill_s(len(requests), max(r.prefill for r in requests))
        if self.rows:
            prefill_s += self.costs.join_s
        padding = self._padding()
        for request, stop in zip(requests, stops_at, strict=True):
            self.prefilling[request.id] = LiveRow(request, stop, now, self.iteration)
        if self.costs.chunk_tokens is None or not self.rows:
            self._spend(prefill_s)
            self._activate()
        else:
            self._chunks_left = math.ceil(max(request.prefill for request in requests) / self.costs.chunk_tokens)
            self._chunk_s = prefill_s / self._chunks_left
            self._measure()
        self.tokens.pad += max(0, self._padding() - padding)

    def leave(self, request_id: str) -> Request:
        """Take a row out; the request comes back with what it has generated."""
        row = self.rows[request_id]
        request = replace(row.request, generated=self.generated(row))
        del self.rows[request_id]
        self._rows_left()
        return request

    def generated(self, row: LiveRow) -> int:
        """Tokens of a row so far."""
        return row.request.generated + (self.iteration - row.joined_iteration if row.request.id in self.rows else 0)

    def iterations_to_event(self, capacity_tokens: int) -> int:
        """Iterations until a row is done, the last chunk is prefilled, or memory does not hold one more."""
        while self._ends and self._stale(self._ends[0]):
            heapq.heappop(self._ends)
        until = self._ends[0][0] - self.iteration
        if self._chunks_left:
            until = min(until, self._chunks_left)
        return min(until, self._holds_iterations(capacity_tokens))

    def seconds(self, iterations: int) -> float:
        """How long the next iterations take."""
        a, b = self._slope_and_base()
        return self.pace * (iterations * b + a * iterations * (iterations + 1) / 2) + iterations * self._chunk_s

    def iterations_by(self, now: float) -> int:
        """Whole iterations that are over at `now`, if nothing happens before."""
        elapsed_s = now - self.at + ROUNDING_S
        if elapsed_s <= 0 or not self.rows:
            return 0
        a, b = self._slope_and_base()
        linear = self.pace * (b + a / 2) + self._chunk_s
        square = self.pace * a
        if square == 0:
            return int(elapsed_s / linear)
        return int((math.sqrt(linear * linear + 2 * square * elapsed_s) - linear) / square)

    def run(self, iterations: int) -> None:
        """Decode so many iterations, during which nothing happens."""
        if not iterations:
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
        self.iteration += iterations
        if self._chunks_left:
            self._chunks_left -= iterations
            if not self._chunks_left:
                self._activate()

    @property
    def may_join(self) -> bool:
        """Whether the next group's prefill can begin now."""
        return not self._chunks_left

    def done(self) -> list[LiveRow]:
        """The rows whose last token is out; they leave."""
        gone = []
        while self._ends and (self._ends[0][0] <= self.iteration or self._stale(self._ends[0])):
            ends_iteration, request_id = heapq.heappop(self._ends)
            if not self._stale((ends_iteration, request_id)):
                gone.append(self.rows.pop(request_id))
        if gone:
            self._rows_left()
        return gone

    def out_of_memory(self, capacity_tokens: int) -> bool:
        """Whether not even one more iteration fits."""
        return bool(self.rows) and self._holds_iterations(capacity_tokens) <= 0

    def newest(self) -> str:
        """The row that joined last."""
        return next(reversed(self.rows))

    def _holds_iterations(self, capacity_tokens: int) -> int:
        if self.costs.padded:
            return capacity_tokens // self.size - self.length
        cached = sum(row.offset + self.iteration for row in self.in_memory())
        return (capacity_tokens - cached) // len(self.rows)

    def _slope_and_base(self) -> tuple[float, float]:
        """Seconds of an iteration for each further cached token, and now."""
        d1, d2, d3, d4 = self.costs.curves.decode
        size = len(self.rows)
        a = d1 * size + d3
        cached = self._longest if self.costs.padded else self._offsets / size
        return a, a * (cached + self.iteration) + d2 * size + d4

    def _activate(self) -> None:
        for request_id, row in self.prefilling.items():
            row.joined_iteration = self.iteration
            self.rows[request_id] = row
            heapq.heappush(self._ends, (row.ends_iteration, request_id))
        self.prefilling.clear()
        self._chunk_s = 0.0
        self._measure()

    def _rows_left(self) -> None:
        self._measure()
        if self._chunks_left and not self.rows:  # nobody is left whom the rest of the prefill would stall
            self._spend(self._chunks_left * self._chunk_s)
            self._chunks_left = 0
            self._activate()

    def _spend(self, seconds: float) -> None:
        self.at += seconds
        self.busy_s += seconds

    def in_memory(self) -> list[LiveRow]:
        """Every row, those being prefilled included."""
        return [*self.rows.values(), *self.prefilling.values()]

    def _measure(self) -> None:
        self._longest = max((row.offset for row in self.in_memory()), default=-self.iteration)
        self._offsets = sum(row.offset for row in self.rows.values())

    def _padding(self) -> int:
        """Pad tokens in memory."""
        return sum(self._longest - row.offset for row in self.in_memory()) if self.costs.padded else 0

    def _stale(self, entry: tuple[int, str]) -> bool:
        row = self.rows.get(entry[1])
        return row is None or row.ends_iteration != entry[0]
