"""The engine drives one decode loop in two ways: static batching (`run`) and continuous (`insert`, `step`, `remove`).

Static batching keeps finished rows in the batch until the whole batch is done, as the papers model it. Continuous
batching (BATON) gives the index of a finished row at once to the next row that joins, or to the last row. While rows
run, the steps that compute their tokens compute parts of the joiners' prompts as well, so that the weights are read
once for both, and no row waits long. Models whose rows have windows or states cannot: their joiners are prefilled when
they are inserted, or in pieces between steps.
An engine belongs to one thread. `OutOfMemory` is raised in one place, `_typed_out_of_memory`.

More than 300 lines, because both ways share its rows.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count

import torch

from inference.engine_errors import OutOfMemory
from inference.local.batch_rows import BatchRow, new_row
from inference.local.cost_counters import StepLog
from inference.local.guessed_tokens import Guessing
from inference.local.kv.kv_cache import BLOCK_TOKENS, BudgetExceeded, KvCache
from inference.local.kv.prefill_pool import PooledRow
from inference.local.kv.row_offload import OffloadedRows
from inference.local.loading.model_loading import LoadedModel
from inference.local.prefix_sharing import shares_prefixes
from inference.local.row_probe import RowProbe
from inference.local.running_batch import RunningBatch
from inference.local.thread_trials import ThreadTrials
from inference.sequences import FinishedSequence, Generated, RunFigures, Sequence

# The most host memory for preempted rows, some of which are never restored because another worker resumed them. A
# larger bound saves more prefills; not tuned.
MAX_OFFLOADED_BYTES = 4 * 2**30

Progress = Callable[[list[FinishedSequence]], None]


class Engine:
    """Generates for many sequences at once, over one model and one KV cache of at most `kv_budget_bytes`.

    When a continuous batch exceeds `memory_threshold` of that budget, the engine preempts rows and resumes them once
    there is memory again (BATON 4.3): the youngest, or those that a `probe` expects to run longest.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        kv_budget_bytes: int,
        memory_threshold: float = 1.0,
        step_log: StepLog | None = None,
        block_tokens: int = BLOCK_TOKENS,
        prefill_tokens: int | None = None,
        thread_trials: ThreadTrials | None = None,
        probe: RowProbe | None = None,
        prefix_cache: bool = False,
        guessing: Guessing | None = None,
    ) -> None:
        """Writes the seconds of each step to `step_log`, from which a worker learns its costs.

        While rows run, at most `prefill_tokens` tokens of joiners are prefilled between two tokens of a row; None: as
        many as the measured costs allow, or of models whose steps compute none, all.
        With `thread_trials` the engine's own steps decide how many CPU threads it takes. With `prefix_cache`, rows of a
        continuous batch share the beginnings of their prompts, and those of earlier rows while there is memory. With
        `guessing`, passes over blocks verify what it guesses of the rows' next tokens.
        """
        self.loaded, self.kv_budget_bytes = loaded, kv_budget_bytes
        self._threshold_bytes = int(memory_threshold * kv_budget_bytes)
        self._kv = KvCache(loaded.layout, kv_budget_bytes, block_tokens=block_tokens)
        shares = prefix_cache and shares_prefixes(loaded)
        self._batch = RunningBatch(loaded, self._kv, step_log, thread_trials, probe, shares, guessing)
        self._probe = probe
        # the rows of a model that keeps states are neither prefilled in pieces nor offloaded
        self._prefill_tokens = sys.maxsize if loaded.layout.state_bytes else prefill_tokens or sys.maxsize
        self._waiting: list[BatchRow] = []  # preempted rows and pooled joiners, in the order in which they join
        self._pooled: PooledRow | None = None  # the first of them, once its prefill has begun
        self._offloaded = OffloadedRows(min(kv_budget_bytes, MAX_OFFLOADED_BYTES))
        self._entry_numbers = count()

    @torch.inference_mode()
    def run(
        self,
        sequences: Several[Sequence],
        iteration_limit: int | None = None,
        on_progress: Progress = lambda finished: None,
    ) -> tuple[list[FinishedSequence], RunFigures]:
        """Serves a static batch; after OutOfMemory no row is in the engine."""
        if self.rows:
            raise ValueError(f"{len(self.rows)} rows are still running")
        batch, rows = self._batch, self._new_rows(sequences)
        batch.reset()
        try:
            with self._typed_out_of_memory(joining=rows):
                served = [row for row in rows if row.running]
                if served:
                    batch.prefill(served, range(len(served)))
                on_progress(batch.take_finished())
                while batch.any_running() and batch.tally.iterations != iteration_limit:
                    batch.decode()
                    on_progress(batch.take_finished())
            return [row.result() for row in rows], self.figures
        finally:
            batch.rows, batch.finished = [], []

    @torch.inference_mode()
    def insert(self, sequences: Several[Sequence]) -> None:
        """Prefills the rows in groups of similar length, without those that are offloaded, or leaves it to `step`."""
        if not self.rows:
            self._batch.reset(continuous=True)
        rows = self._new_rows(sequences)
        served = [row for row in rows if row.running]
        with self._typed_out_of_memory(joining=served):
            if (self.loaded.mixes_passes or self._prefill_tokens < sys.maxsize) and self._batch.any_running():
                self._require_memory(served)
                self._waiting += served
            elif served:
                self._join(served)
        self._batch.finished += [row.result() for row in rows if not row.running and row not in served]

    @torch.inference_mode()
    def step(self) -> list[FinishedSequence]:
        """Computes a token for each running row, and those that were guessed right, or raises OutOfMemory.

        That is raised if a single row exceeds the budget, or if the device itself has no memory left. The rows then
        stay in the engine, where they can be preempted or removed; rows that remain are prefilled again.
        """
        batch = self._batch
        with self._typed_out_of_memory():
            batch.compact()
            self._preempt()
            room = min(self._prefill_tokens, batch.prompt_room)
            if self.loaded.mixes_passes and batch.rows:
                self._begin_waiting(room)
            else:
                self._join_waiting()
            if batch.rows:
                batch.decode(room)
        return batch.take_finished()

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """Ends a row and discards its offloaded copy."""
        self._offloaded.discard(sequence_id)
        row = self._find(sequence_id)
        if row is None:
            return None
        self._remove(row)
        return row.result()

    @torch.inference_mode()
    def preempt(self, sequence_id: str) -> Sequence:
        """Takes a row out, and offloads it if that is cheaper than another prefill."""
        row = self._find(sequence_id)
        if row is None:
            raise KeyError(sequence_id)
        self._offload(row)
        self._remove(row)
        return replace(row.sequence, generated_ids=tuple(row.generated), logprobs=tuple(row.logprobs))

    @property
    def max_positions(self) -> int:
        """The model's number of positions."""
        return self.loaded.max_positions

    @property
    def rows(self) -> dict[str, int]:
        """The number of generated tokens of running rows, waiting ones included, and of finished rows."""
        finished = {row.id: len(row.generated_ids) for row in self._batch.finished}
        return finished | {row.sequence.id: len(row.generated) for row in self._running_rows()}

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns the new token ids of running rows."""
        return {
            row.sequence.id: Generated(
                tuple(row.generated[since[row.sequence.id] :]), None, row.sequence.stop, row.sequence.continues
            )
            for row in self._running_rows()
            if row.sequence.id in since
        }

    @property
    def kv_bytes(self) -> int:
        """The bytes of the rectangle or of all blocks in use, and of the pool."""
        return self._kv.nbytes + (0 if self._pooled is None else self._pooled.nbytes)

    @property
    def figures(self) -> RunFigures:
        """The figures of all steps since the batch was last empty."""
        return self._batch.tally.figures()

    def _new_rows(self, sequences: Several[Sequence]) -> list[BatchRow]:
        ids = set(self.rows)
        for sequence in sequences:
            if sequence.id in ids:
                raise ValueError(f"sequence {sequence.id} is running already")
            ids.add(sequence.id)
        return [new_row(self.loaded, sequence, next(self._entry_numbers)) for sequence in sequences]

    def _running_rows(self) -> Iterator[BatchRow]:
        return (row for row in (*self._batch.rows, *self._waiting) if row.running)

    def _find(self, sequence_id: str) -> BatchRow | None:
        return next((row for row in self._running_rows() if row.sequence.id == sequence_id), None)

    def _remove(self, row: BatchRow) -> None:
        self._batch.mark_removed(row)
        self._waiting = [other for other in self._waiting if other is not row]
        if self._pooled is not None and self._pooled.row is row:
            self._pooled = None

    def _join(self, rows: list[BatchRow]) -> None:
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
            self._offloaded.restore(row.sequence.id, self._kv, index, batch.sharing.tokens(row))
            batch.add([row], [index])
        for group in groups:
            batch.prefill(group, indices[: len(group)])
            del indices[: len(group)]

    def _require_memory(self, rows: list[BatchRow]) -> None:
        """Raises BudgetExceeded if the memory does not hold these rows beside all others."""
        held = (row for row in self._batch.rows if row.running)
        needed_bytes = self._kv.needed_bytes([row.length for row in (*held, *self._waiting, *rows)])
        if needed_bytes > self.kv_budget_bytes:
            raise BudgetExceeded(needed_bytes)

    def _preempt(self) -> None:
        """Frees the pool, then preempts rows, until the next token stays below the threshold."""
        batch = self._batch
        while batch.rows and not self._below_threshold(batch.rows, growth=1):
            if self._pooled is not None:
                self._pooled = None
            elif len(batch.rows) > 1:
                longest = None if self._probe is None else self._probe.longest(batch.rows)
                chosen = longest or max(batch.rows, key=lambda row: row.entry_number)
                chosen.preempted = True
                self._offload(chosen)
                batch.drop(chosen)
                self._waiting.insert(0, chosen)
            else:
                break

    def _begin_waiting(self, room: int) -> None:
        """Lets waiting rows join with the coming steps, the next of which computes `room` tokens of their prompts."""
        batch = self._batch
        room -= sum(row.unjoined for row in batch.rows)
        for row in self._next_joiners(room):
            if self._offloaded.holds(row.sequence.id, row.token_ids[:-1]) or row.sequence.prompt_logprobs:
                self._join([row])
            elif batch.sharing.awaits(row, [other for other in batch.rows if other.unjoined]):
                return
            else:
                batch.begin(row)
            del self._waiting[0]

    def _join_waiting(self) -> None:
        """Lets waiting rows join in their order; while others run, prefills at most `prefill_tokens` of them."""
        batch = self._batch
        left = self._prefill_tokens if batch.rows else sys.maxsize
        while joiners := self._next_joiners(left):
            tokens = sum(map(self._unprefilled, joiners))
            if self._pooled is None and tokens <= left:
                self._join(joiners)
            else:
                if self._pooled is None:
                    self._pooled = batch.pool(joiners[0])
                batch.prefill_piece(self._pooled, left)
                if tokens > left:
                    return
                self._pooled = None
            del self._waiting[: len(joiners)]
            left -= tokens

    def _next_joiners(self, left: int) -> list[BatchRow]:
        """Returns the first waiting rows that fit the memory and have `left` tokens, or one to prefill in pieces."""
        joiners: list[BatchRow] = []
        for row in self._waiting:
            rows = [*self._batch.rows, *joiners, row]
            # Counts each row with one block more than it needs now, so that no row is preempted again at once.
            if left <= 0 or (len(rows) > 1 and not self._below_threshold(rows, growth=BLOCK_TOKENS)):
                break
            left -= self._unprefilled(row)
            if joiners and (left < 0 or self._pooled is not None):
                break
            joiners.append(row)
        return joiners

    def _unprefilled(self, row: BatchRow) -> int:
        """Returns the number of tokens to prefill before the row joins."""
        if self._pooled is not None and self._pooled.row is row:
            return self._pooled.left
        if self._offloaded.holds(row.sequence.id, row.token_ids[:-1]):
            return 0
        return row.length - self._batch.sharing.tokens(row)

    def _below_threshold(self, rows: Several[BatchRow], growth: int) -> bool:
        pooled_bytes = 0 if self._pooled is None or self._pooled.row in rows else self._pooled.nbytes
        needed_bytes = self._kv.needed_bytes([row.length - 1 + growth for row in rows])
        return needed_bytes + pooled_bytes <= self._threshold_bytes

    def _offload(self, row: BatchRow) -> None:
        """Copies a row's keys and values to host memory if that is expected to take less time than another prefill."""
        computed_again = row.sequence.prompt_logprobs or self.loaded.layout.state_bytes or row.unjoined
        if row in self._batch.rows and not computed_again:  # only a prefill computes prompt_logprobs
            index, tally = self._batch.rows.index(row), self._batch.tally
            prefill_s = row.cached_tokens * tally.prefill_s / max(1, tally.prefilled_tokens)
            self._offloaded.offload(row.sequence.id, self._kv, index, row.token_ids[:-1], prefill_s)

    @contextmanager
    def _typed_out_of_memory(self, joining: Several[BatchRow] = ()) -> Iterator[None]:
        """Turns the errors of the cache and the device into OutOfMemory, and takes the joining rows out again.

        If the device has no memory left, the cache is released, and the running rows wait for another prefill.
        """
        try:
            yield
        except (BudgetExceeded, torch.OutOfMemoryError) as error:
            for row in joining:
                self._remove(row)
            needed_bytes = error.needed_bytes if isinstance(error, BudgetExceeded) else self._kv.nbytes
            if not isinstance(error, BudgetExceeded):
                self._waiting[:0], self._pooled = self._batch.release_cache(), None
                torch.cuda.empty_cache()
            raise OutOfMemory(needed_bytes, self.kv_budget_bytes) from error
