"""Lets waiting rows join a running batch: new rows that came while others ran, and preempted rows.

They join in their order, as far as the memory allows. The steps that compute the running rows' tokens compute parts of
the joiners' prompts as well, so that the weights are read once for both, and no row waits long. If one pass cannot do
both, because rows have windows or states, each joiner's part has a pass before it. A prompt longer than PIECE_TOKENS is
computed in pieces even if no row runs, so that a cancelled row or a worker that stops waits for one piece only.
"""

import sys
from collections.abc import Sequence
from itertools import takewhile

from inference.local.batch_rows import BatchRow
from inference.local.decode_steps import DecodeSteps
from inference.local.kv.kv_cache import BLOCK_TOKENS, BudgetExceeded
from inference.local.kv.row_offload import OffloadedRows

# The most tokens of a prompt in a pass without running rows. On one thread 8,192 tokens of four layers like SmolLM2's
# take 28 s in float32 as a whole, 21 s in pieces of 1,024, 23 s in pieces of 512; in bfloat16 86, 80 and 97 s.
PIECE_TOKENS = 1024


class Joiners:
    """Lets rows join the batch of `steps` as long as its cache then takes at most `threshold_bytes`."""

    def __init__(
        self, steps: DecodeSteps, offloaded: OffloadedRows, threshold_bytes: int, prefill_tokens: int | None
    ) -> None:
        """Between two tokens of a row, at most `prefill_tokens` tokens of prompts are computed; see EngineOptions."""
        self.waiting: list[BatchRow] = []  # the rows in the order in which they will join
        self._steps, self._batch, self._offloaded = steps, steps.batch, offloaded
        self._threshold_bytes = threshold_bytes
        self._whole = bool(self._batch.loaded.layout.state_bytes)  # a model that keeps states computes whole prompts
        self._prefill_tokens = prefill_tokens

    def join_later(self, rows: Sequence[BatchRow]) -> bool:
        """Returns whether rows join in the next steps, because steps compute parts of prompts or a prompt is long."""
        in_parts = self._batch.loaded.mixes_passes or self._prefill_tokens is not None
        return not self._whole and ((in_parts and self._batch.any_running()) or any(map(self._is_long, rows)))

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

    def fits(self, joiners: Sequence[BatchRow] = (), growth: int = 1) -> bool:
        """Returns whether rows and joiners stay below the threshold with `growth` tokens more than the cache holds."""
        return self._needed_bytes(self._batch.rows, joiners, growth) <= self._threshold_bytes

    def step(self) -> int:
        """Lets rows join before a step; returns the most tokens of their prompts that the step should compute."""
        rows = self._batch.rows
        if self.waiting and not rows and not self._is_long(self.waiting[0]):
            self._join_first()
        if not self.waiting and not any(row.unjoined for row in rows):
            return 0
        mixes, waited_for = self._batch.loaded.mixes_passes, any(row.decodes for row in rows)
        room = sys.maxsize if self._whole else PIECE_TOKENS
        if waited_for and not self._whole:
            room = min(self._prefill_tokens or room, self._steps.prompt_room if mixes else room)
        self._begin(room)
        return room

    def join(self, rows: list[BatchRow]) -> None:
        """Restores rows, or computes their prompts at once in groups of similar length; all of them join or none."""
        batch = self._batch
        batch.compact()
        restored = [row for row in rows if self._holds(row)]
        groups = batch.sharing.prefill_groups(row for row in rows if row not in restored)
        batch.reserve([*restored, *(row for group in groups for row in group)])
        for row in restored:
            batch.join([row])
            self._offloaded.restore(row.sequence.id, batch.kv, len(batch.rows) - 1, row.cached_tokens)
            row.joined = None
        for group in groups:
            self._steps.prefill(group)

    def _begin(self, room: int) -> None:
        """Lets waiting rows join with the coming steps; the next step computes `room` tokens of their prompts."""
        batch, joining = self._batch, [row.unjoined for row in self._batch.rows]
        left, longest = room - sum(joining), max(joining, default=0)
        if longest > room:  # short rows join beside it
            left = room // 2 - (sum(joining) - longest)
        # counts each row with one block more than it needs now, so that no row is preempted again at once
        while self.waiting and left > 0 and (not batch.rows or self.fits(self.waiting[:1], growth=BLOCK_TOKENS)):
            if longest > room and 2 * self.waiting[0].length > longest:
                return
            row = self.waiting[0]
            if self._holds(row):
                self.join([row])
            elif batch.sharing.awaits(row, [other for other in batch.rows if other.unjoined]):
                return
            else:
                batch.join([row])
                row.joined = row.cached_tokens + batch.sharing.copy_part(row, len(batch.rows) - 1)
                self._steps.tally.count_joiner(row.length)
            del self.waiting[0]
            left -= row.unjoined

    def _join_first(self) -> None:
        """Lets the first waiting row join an empty batch, and the next ones up to a long row and as memory allows."""
        short, joiners = [*takewhile(lambda row: not self._is_long(row), self.waiting)], self.waiting[:1]
        while len(joiners) < len(short) and self.fits(short[: len(joiners) + 1], growth=BLOCK_TOKENS):
            joiners = short[: len(joiners) + 1]
        self.join(joiners)
        del self.waiting[: len(joiners)]

    def _is_long(self, row: BatchRow) -> bool:
        """Returns whether the row's prompt is computed in pieces."""
        return not self._whole and row.length > PIECE_TOKENS

    def _holds(self, row: BatchRow) -> bool:
        """Returns whether the row's keys and values are in host memory."""
        return self._offloaded.holds(row.sequence.id, row.token_ids[:-1])

    def _needed_bytes(self, rows: Sequence[BatchRow], joiners: Sequence[BatchRow], growth: int) -> int:
        """Returns the bytes that rows and joiners need, each with `growth` tokens more than the cache holds."""
        lengths = [row.length - 1 + growth for row in (*rows, *joiners)]
        return self._batch.kv.needed_bytes(lengths, [self._batch.sharing.blocks(row) for row in joiners])
