"""A continuous batch on a simulated engine: rows join, decode together and leave one by one.

Nothing is stepped token by token. Between two events the rows stay the same, so by SCLS Eq. (4) k iterations over n
rows whose cached length grows from l take Σ from i = 1 to k of (a·(l + i) + b) seconds, with a = d1·n + d3 and
b = d2·n + d4. The sum has a closed form, and solving it for k takes a square root. Iterations are counted from the
start of the batch; a row's generated and cached tokens, and its end, all follow from this one count.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduling.batch_partition import prefill_groups
from scheduling.kv_memory import KvMemory
from scheduling.policy import RunningRow
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts, Tokens
from scheduling.simulation.event_queue import ROUNDING_S


@dataclass(slots=True)
class SimulatedRow:
    """A row of a continuous batch."""

    request: Request
    stops_at: int  # the total generated tokens with which it leaves
    joined_at: float
    generated_offset: int  # the row's generated tokens minus the batch's iterations

    @property
    def last_iteration(self) -> int:
        """Return the batch's iteration after which this row is done."""
        return self.stops_at - self.generated_offset

    @property
    def cached_offset(self) -> int:
        """Return the row's cached tokens minus the batch's iterations."""
        return self.request.length + self.generated_offset


class ContinuousBatch:
    """Rows that decode together. The batch's state is that at the instant `at`, which lies between two iterations."""

    def __init__(self, costs: EngineCosts, memory: KvMemory) -> None:
        self.costs, self.memory = costs, memory
        self.at = 0.0
        self.busy_s = 0.0
        self.iteration = 0
        self.rows: dict[str, SimulatedRow] = {}
        self.prefilling: dict[str, SimulatedRow] = {}  # rows in chunked prefill: they use memory but do not decode yet
        self.slowdown = 1.0  # the factor of durations that the jitter gives
        self.tokens = Tokens()
        self._chunks_end = 0  # the iteration after which `prefilling` rows decode
        self._chunk_s = 0.0  # the seconds that a chunk of prefill adds to an iteration
        self._last_iterations: list[tuple[int, str]] = []  # a heap; entries of rows that left stay until they are first
        self._largest_offset = 0  # the largest cached offset of a row in memory
        self._offset_sum = 0  # the sum of the cached offsets of the decoding rows
        self._next_event: int | None = None  # the result of `next_event`, until rows change
        self._prefixes: dict[str, int] = {}  # tokens of cached beginnings by application, in order of last use
        self.shared_tokens = 0  # the tokens that rows share in paged memory, which holds each of them once

    @property
    def size(self) -> int:
        """Return the number of rows in memory."""
        return len(self.rows) + len(self.prefilling)

    @property
    def length(self) -> int:
        """Return the cached tokens of the longest row."""
        return self._largest_offset + self.iteration

    @property
    def accepts_joiners(self) -> bool:
        """Return whether the next group's prefill can begin now."""
        return not self.prefilling

    def fits(self, requests: Sequence[Request], growth: int = 1) -> bool:
        """Return whether memory holds these requests beside the rows, each row with `growth` more tokens."""
        size = self.size + len(requests)
        longest = max([request.prefill for request in requests], default=0)
        if self.size:
            longest = max(longest, self.length)
        total = self._cached() + self.shared_tokens + sum(request.prefill for request in requests)
        total -= self._shared([*(row.request for row in self.rows_in_memory()), *requests])
        tokens = self.memory.rows_tokens(size, longest + growth, total + growth * size)
        return tokens <= self.memory.capacity_tokens and size <= self.memory.most_rows

    def join(self, requests: Sequence[Request], stops_at: Sequence[int], now: float) -> None:
        """Prefill these rows, in groups of similar length.

        They decode from the next iteration on, or with chunked prefill after the last chunk.
        """
        computed = [self._without_prefix(request) for request in requests]
        curves, longest = self.costs.curves, max(request.prefill for request in computed)
        prefill_s = self.slowdown * sum(
            curves.prefill_s(len(group), max(request.prefill for request in group))
            for group in prefill_groups(computed, curves)
        )
        chunks = math.ceil(longest / self.costs.chunk_tokens) if self.costs.chunk_tokens and self.rows else 0
        if self.rows:
            prefill_s += self.costs.join_s
        padding = self._padding()
        for request, stop in zip(requests, stops_at, strict=True):
            self.prefilling[request.id] = SimulatedRow(request, stop, now, request.generated - self.iteration)
        self._update_lengths()
        self._evict()
        self.tokens.pad += max(0, self._padding() - padding)
        if chunks:
            self._chunks_end = self.iteration + chunks
            self._chunk_s = prefill_s / chunks
        else:
            self._advance_clock(prefill_s)
            self._start_decoding()

    def _without_prefix(self, request: Request) -> Request:
        """Return the request without its prompt's cached beginning, and cache the beginning for later requests."""
        shared = self._beginning(request)
        if not shared:
            return request
        held = self._prefixes.pop(request.application, 0)
        self._prefixes[request.application] = shared
        return replace(request, length=request.length - min(shared, held))

    def _evict(self) -> None:
        """Evict the least recently used beginnings that no row reads, until the others fit beside the rows."""
        read = {row.request.application for row in self.rows_in_memory()}
        unread = [application for application in self._prefixes if application not in read]
        # If layers have windows, rows may have more tokens than the capacity.
        free = max(0, self.memory.capacity_tokens - self._cached())
        while sum(self._prefixes[application] for application in unread) > free:
            del self._prefixes[unread.pop(0)]

    def _beginning(self, request: Request) -> int:
        """Return the tokens with which all prompts of its application begin; a prompt's last token is its own."""
        return min(self.costs.shared_tokens.get(request.application, 0), request.length - 1)

    def _shared(self, requests: Sequence[Request]) -> int:
        """Return the tokens that these requests need not hold, because another of the application holds them."""
        if not self.costs.shared_tokens or not self.memory.paged:
            return 0
        beginnings, held = [(request.application, self._beginning(request)) for request in requests], dict[str, int]()
        for application, tokens in beginnings:
            held[application] = max(tokens, held.get(application, 0))
        return sum(tokens for _, tokens in beginnings) - sum(held.values())

    def resume(self, rows: Sequence[RunningRow], stops_at: Sequence[int], now: float) -> None:
        """Start with rows that are already running."""
        self.at = now
        for row, stop in zip(rows, stops_at, strict=True):
            offset = row.generated - self.iteration
            self.rows[row.request.id] = resumed = SimulatedRow(row.request, stop, row.started_at, offset)
            heapq.heappush(self._last_iterations, (resumed.last_iteration, row.request.id))
        self._update_lengths()

    def leave(self, request_id: str) -> Request:
        """Remove a row; return its request with the generated tokens."""
        row = self.rows.pop(request_id)
        self._after_leaving()
        return replace(row.request, generated=row.generated_offset + self.iteration)

    def next_event(self) -> int:
        """Return the iteration after which a row is done, the last chunk is prefilled, or memory is full."""
        if self._next_event is None:
            while self._is_out_of_date(self._last_iterations[0]):
                heapq.heappop(self._last_iterations)
            self._next_event = min(self._last_iterations[0][0], self._last_that_fits())
            if self.prefilling:
                self._next_event = min(self._next_event, self._chunks_end)
        return self._next_event

    def decode_s(self, iterations: int) -> float:
        """Return the seconds of the next `iterations` iterations."""
        a, b = self._slope_and_base()
        return self.slowdown * (iterations * b + a * iterations * (iterations + 1) / 2) + iterations * self._chunk_s

    def iteration_at(self, now: float) -> int:
        """Return the last iteration that has ended by `now` if no event comes before."""
        elapsed_s = now - self.at + ROUNDING_S
        if elapsed_s <= 0:
            return self.iteration
        a, b = self._slope_and_base()
        linear = self.slowdown * (b + a / 2) + self._chunk_s
        # Not (root - linear) / a: with a tiny `a` both are equal in floats, so no iteration would ever end.
        root = math.sqrt(linear * linear + 2 * self.slowdown * a * elapsed_s)
        return self.iteration + int(2 * elapsed_s / (linear + root))

    def decode_until(self, until: int) -> None:
        """Decode to the end of iteration `until`; no event may come before it."""
        iterations = until - self.iteration
        if iterations <= 0:
            return
        size = len(self.rows)
        self._advance_clock(self.decode_s(iterations))
        per_row = iterations * self.iteration + iterations * (iterations + 1) // 2
        useful = size * per_row + iterations * self._offset_sum
        self.tokens.valid += size * iterations
        self.tokens.useful_reads += useful
        self.tokens.reads += size * (iterations * self._largest_offset + per_row) if not self.memory.paged else useful
        self.tokens.iterations += iterations
        self.tokens.row_iterations += size * iterations
        self.iteration = until
        if self.prefilling and until >= self._chunks_end:
            self._start_decoding()

    def pop_done(self) -> list[SimulatedRow]:
        """Remove and return the rows that have their last token."""
        ended = []
        while self._last_iterations and (
            self._is_out_of_date(self._last_iterations[0]) or self._last_iterations[0][0] <= self.iteration
        ):
            entry = heapq.heappop(self._last_iterations)
            if not self._is_out_of_date(entry):
                ended.append(self.rows.pop(entry[1]))
        if ended:
            self._after_leaving()
        return ended

    def is_full(self) -> bool:
        """Return whether memory is too full for another iteration."""
        return bool(self.rows) and self._last_that_fits() <= self.iteration

    def preempt(self) -> SimulatedRow:
        """Remove and return the decoding row that joined last, with its generated tokens."""
        row = self.rows[next(reversed(self.rows))]
        return replace(row, request=self.leave(row.request.id))

    def rows_in_memory(self) -> list[SimulatedRow]:
        """Return every row, rows in chunked prefill included."""
        return [*self.rows.values(), *self.prefilling.values()]

    def _last_that_fits(self) -> int:
        """Return the last iteration that memory holds if no row leaves before."""
        capacity = self.memory.tokens_within(self.size)
        if not self.memory.paged:
            return capacity // self.size - self._largest_offset
        overhead = self.size * self.memory.row_overhead_tokens
        return self.iteration + int((capacity - overhead - self._cached()) // len(self.rows))

    def _cached(self) -> int:
        """Return the tokens in memory without padding."""
        decoding = self._offset_sum + len(self.rows) * self.iteration
        return decoding + sum(row.request.prefill for row in self.prefilling.values()) - self.shared_tokens

    def _slope_and_base(self) -> tuple[float, float]:
        """Return a and b: without events, the k-th iteration from now takes a · k + b seconds."""
        d1, d2, d3, d4 = self.costs.curves.decode
        size = len(self.rows)
        a = d1 * size + d3
        offset = self._offset_sum / size if self.memory.paged else self._largest_offset
        return a, a * (offset + self.iteration) + d2 * size + d4

    def _start_decoding(self) -> None:
        for request_id, row in self.prefilling.items():
            row.generated_offset = row.request.generated - self.iteration
            self.rows[request_id] = row
            heapq.heappush(self._last_iterations, (row.last_iteration, request_id))
        self.prefilling.clear()
        self._chunk_s = 0.0
        self._update_lengths()

    def _after_leaving(self) -> None:
        self._update_lengths()
        if self.prefilling and not self.rows:  # without decoding rows the remaining chunks run at once
            self._advance_clock((self._chunks_end - self.iteration) * self._chunk_s)
            self._start_decoding()

    def _update_lengths(self) -> None:
        self._next_event = None
        self._largest_offset = max((row.cached_offset for row in self.rows_in_memory()), default=-self.iteration)
        self._offset_sum = sum(row.cached_offset for row in self.rows.values())
        self.shared_tokens = self._shared([row.request for row in self.rows_in_memory()])

    def _advance_clock(self, seconds: float) -> None:
        self.at += seconds
        self.busy_s += seconds

    def _padding(self) -> int:
        """Return the pad tokens in memory."""
        if self.memory.paged:
            return 0
        return sum(self._largest_offset - row.cached_offset for row in self.rows_in_memory())

    def _is_out_of_date(self, entry: tuple[int, str]) -> bool:
        row = self.rows.get(entry[1])
        return row is None or row.last_iteration != entry[0]
