"""The rows that wait to join a running batch: new ones while others run, and preempted ones.

They join in their order, as far as the memory allows. While rows run, the steps that compute their tokens compute
parts of the joiners' prompts as well, so that the weights are read once for both, and no row waits long. Models whose
rows have windows or states cannot: their joiners are prefilled whole, or in pieces between steps.
"""

import sys
from collections.abc import Sequence as Several
from itertools import chain

from inference.local.batch_rows import BatchRow
from inference.local.kv.kv_cache import BLOCK_TOKENS, BudgetExceeded
from inference.local.kv.prefill_pool import PooledRow
from inference.local.kv.row_offload import OffloadedRows
from inference.local.running_batch import RunningBatch


class Joiners:
    """Lets rows join `batch`, which takes at most `threshold_bytes` with them."""

    def __init__(
        self, batch: RunningBatch, offloaded: OffloadedRows, threshold_bytes: int, prefill_tokens: int | None
    ) -> None:
        """At most `prefill_tokens` tokens are prefilled between two tokens of a row; None: see `Engine`."""
        self.waiting: list[BatchRow] = []  # in the order in which they join
        self.pooled: PooledRow | None = None  # the first of them, once its prefill in pieces has begun
        self._batch, self._offloaded, self._threshold_bytes = batch, offloaded, threshold_bytes
        # the rows of a model that keeps states are not prefilled in pieces
        self._prefill_tokens = sys.maxsize if batch.loaded.layout.state_bytes else prefill_tokens or sys.maxsize

    @property
    def join_later(self) -> bool:
        """Whether rows that come now join in the next steps."""
        in_parts = self._batch.loaded.mixes_passes or self._prefill_tokens < sys.maxsize
        return in_parts and self._batch.any_running()

    def add(self, rows: list[BatchRow]) -> None:
        """Adds rows; raises BudgetExceeded if the memory does not hold them beside all others."""
        held, joining = [row for row in self._batch.rows if row.running], [*self.waiting, *rows]
        needed_bytes = self._needed_bytes(held, joining, growth=1)
        if needed_bytes > self._batch.kv.budget_bytes:
            raise BudgetExceeded(needed_bytes)
        self.waiting += rows

    def remove(self, row: BatchRow) -> None:
        """Removes a row, if it waits."""
        self.waiting = [other for other in self.waiting if other is not row]
        if self.pooled is not None and self.pooled.row is row:
            self.pooled = None

    def fits(self, joiners: Several[BatchRow] = (), growth: int = 1) -> bool:
        """Returns whether rows and joiners stay below the threshold with `growth` tokens more than the cache holds."""
        pooled_bytes = 0 if self.pooled is None or self.pooled.row in joiners else self.pooled.nbytes
        return self._needed_bytes(self._batch.rows, joiners, growth) + pooled_bytes <= self._threshold_bytes

    def step(self) -> int:
        """Lets rows join before a step; returns the most tokens of their prompts that the step should compute."""
        batch = self._batch
        if not batch.loaded.mixes_passes or not batch.rows:
            self._join_waiting()
        elif self.waiting or any(row.unjoined for row in batch.rows):
            room = min(self._prefill_tokens, batch.prompt_room)
            self._begin(room)
            return room
        return 0

    def join(self, rows: list[BatchRow]) -> None:
        """Restores or prefills rows, first at the indices of finished rows, then behind the last row."""
        batch = self._batch
        free = [index for index, row in enumerate(batch.rows) if not row.running]
        for index in free:
            batch.vacate(index)
        offloaded = [row for row in rows if self._offloaded.holds(row.sequence.id, row.token_ids[:-1])]
        groups = batch.sharing.prefill_groups(row for row in rows if row not in offloaded)
        in_order = [*offloaded, *chain.from_iterable(groups)]
        indices = [*free, *range(len(batch.rows), len(batch.rows) + len(rows))][: len(rows)]
        batch.reserve_joiners(in_order, indices)  # one reservation for all rows, so that all of them join or none
        for row in offloaded:
            index = indices.pop(0)
            self._offloaded.restore(row.sequence.id, batch.kv, index, batch.sharing.tokens(row))
            batch.add([row], [index])
        for group in groups:
            batch.prefill(group, indices[: len(group)])
            del indices[: len(group)]

    def _begin(self, room: int) -> None:
        """Lets waiting rows join with the coming steps; the next step computes `room` tokens of their prompts."""
        batch = self._batch
        while joiners := self._next_joiners(room - sum(row.unjoined for row in batch.rows)):
            row = joiners[0]
            if self._offloaded.holds(row.sequence.id, row.token_ids[:-1]) or row.sequence.prompt_logprobs:
                self.join([row])
            elif batch.sharing.awaits(row, [other for other in batch.rows if other.unjoined]):
                return
            else:
                batch.begin(row)
            del self.waiting[0]

    def _join_waiting(self) -> None:
        """Lets waiting rows join in their order; while others run, prefills at most `prefill_tokens` of them."""
        batch = self._batch
        left = self._prefill_tokens if batch.rows else sys.maxsize
        while joiners := self._next_joiners(left):
            tokens = sum(map(self._unprefilled, joiners))
            if self.pooled is None and tokens <= left:
                self.join(joiners)
            else:
                if self.pooled is None:
                    self.pooled = batch.pool(joiners[0])
                batch.prefill_piece(self.pooled, left)
                if tokens > left:
                    return
                self.pooled = None
            del self.waiting[: len(joiners)]
            left -= tokens

    def _next_joiners(self, left: int) -> list[BatchRow]:
        """Returns the first waiting rows that fit the memory and `left` tokens in all, or one to prefill in pieces."""
        joiners: list[BatchRow] = []
        for row in self.waiting:
            others = len(self._batch.rows) + len(joiners)
            # Counts each row with one block more than it needs now, so that no row is preempted again at once.
            if left <= 0 or (others and not self.fits([*joiners, row], growth=BLOCK_TOKENS)):
                break
            left -= self._unprefilled(row)
            if joiners and (left < 0 or self.pooled is not None):
                break
            joiners.append(row)
        return joiners

    def _unprefilled(self, row: BatchRow) -> int:
        """Returns the number of tokens to prefill before the row joins."""
        if self.pooled is not None and self.pooled.row is row:
            return self.pooled.left
        if self._offloaded.holds(row.sequence.id, row.token_ids[:-1]):
            return 0
        return row.length - self._batch.sharing.tokens(row)

    def _needed_bytes(self, rows: Several[BatchRow], joiners: Several[BatchRow], growth: int) -> int:
        """Returns the bytes that rows and joiners need, each with `growth` tokens more than the cache holds."""
        lengths = [row.length - 1 + growth for row in (*rows, *joiners)]
        return self._batch.kv.needed_bytes(lengths, [self._batch.sharing.blocks(row) for row in joiners])
