"""The engine drives one decode loop in two ways: static batching (`run`) and continuous (`insert`, `step`, `remove`).

Static batching keeps finished rows in the batch until the whole batch is done, as the papers model it. Continuous
batching (BATON) gives the index of a finished row at once to the next row that joins, or to the last row. How rows join
is in `joiners.py`. An engine belongs to one thread. `OutOfMemory` is raised in one place, `_typed_out_of_memory`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from time import perf_counter

import torch

from inference.accelerator import HostCopies, release_unused
from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest, FinishedRow, Generated, RunFigures
from inference.local.batch_rows import BatchRow, new_row
from inference.local.decode_steps import DecodeSteps
from inference.local.engine_options import EngineOptions
from inference.local.forward.step_graphs import SIZES
from inference.local.joiners import Joiners
from inference.local.kv.kv_cache import BudgetExceeded, KvCache
from inference.local.kv.row_offload import OffloadedRows
from inference.local.loading.model_loading import LoadedModel
from inference.local.prefix_sharing import shares_prefixes
from inference.local.running_batch import RunningBatch

# The most host memory for preempted rows, some of which are never restored because another worker resumed them. A
# larger bound saves more prefills; not tuned.
MAX_OFFLOADED_BYTES = 4 * 2**30

Progress = Callable[[list[FinishedRow]], None]


class Engine:
    """Generates for many sequences at once, over one model and one KV cache of at most `kv_budget_bytes`.

    When a continuous batch exceeds `memory_threshold` of that budget, the engine preempts the youngest rows, or those
    that a `probe` expects to run longest, and resumes them once there is memory again (BATON 4.3).
    """

    def __init__(self, loaded: LoadedModel, kv_budget_bytes: int, options: EngineOptions | None = None) -> None:
        """Allocates nothing before the first rows come."""
        options = options or EngineOptions()
        self.loaded, self.kv_budget_bytes, self._probe = loaded, kv_budget_bytes, options.probe
        self._loop_stops = options.loop_stops
        self._kv = KvCache(loaded.layout, kv_budget_bytes, block_tokens=options.block_tokens, by_pages=loaded.by_pages)
        self._batch = RunningBatch(loaded, self._kv, options.prefix_cache and shares_prefixes(loaded))
        self._steps = DecodeSteps(self._batch, options)
        self._offloaded = OffloadedRows(min(kv_budget_bytes, MAX_OFFLOADED_BYTES), HostCopies(loaded.device))
        threshold_bytes = int(options.memory_threshold * kv_budget_bytes)
        self._joiners = Joiners(self._steps, self._offloaded, threshold_bytes, options.prefill_tokens)
        self._entry_numbers = count()

    @torch.inference_mode()
    def run(
        self,
        sequences: Sequence[DecodingRequest],
        iteration_limit: int | None = None,
        on_progress: Progress = lambda finished: None,
    ) -> tuple[list[FinishedRow], RunFigures]:
        """Serves a static batch; after OutOfMemory no row is in the engine."""
        if self.rows:
            raise ValueError(f"{len(self.rows)} rows are still running")
        batch, steps, rows = self._batch, self._steps, self._new_rows(sequences)
        self._begin(in_blocks=False)
        try:
            with self._typed_out_of_memory(joining=rows):
                if served := [row for row in rows if row.running]:
                    steps.prefill(served)
                on_progress(steps.take_finished())
                while batch.any_running() and steps.iterations != iteration_limit:
                    steps.step(sys.maxsize)
                    on_progress(steps.take_finished())
                if steps.read() is not None:
                    on_progress(steps.take_finished())
            return [row.result() for row in rows], self.figures
        except OutOfMemory:
            on_progress(steps.take_finished())
            raise
        finally:
            batch.rows, batch.ended, steps.finished = [], [], []

    @torch.inference_mode()
    def insert(self, sequences: Sequence[DecodingRequest]) -> None:
        """Adds rows and computes their prompts in groups of similar length, or lets `step` do so while other rows run.

        Raises OutOfMemory if the memory does not hold the new rows beside all others; then none of them is added.
        """
        if not self.rows:
            self._begin(in_blocks=self.loaded.in_blocks)
        rows = self._new_rows(sequences)
        for row in rows:  # another engine may have continued a row, or an operator restarted it under another adapter
            if not self._offloaded.holds(row.sequence.id, row.token_ids[:-1]):
                self._offloaded.discard(row.sequence.id)
        served = [row for row in rows if row.running]
        with self._typed_out_of_memory(joining=served):
            if self._joiners.join_later(served):
                self._joiners.add(served)
            elif served:
                self._joiners.join(served)
        self._steps.finished += [row.result() for row in rows if not row.running and row not in served]

    @torch.inference_mode()
    def step(self) -> list[FinishedRow]:
        """Computes a token for each running row, and more where guesses are right; returns the rows that finished.

        Raises OutOfMemory if a single row exceeds the budget, or if the device itself has no memory left. The rows then
        stay in the engine, where they can be preempted or removed; rows that remain are prefilled again.
        """
        batch = self._batch
        with self._typed_out_of_memory():
            batch.compact()
            self._preempt()
            self._steps.step(self._joiners.step())
        return self._steps.take_finished()

    def remove(self, sequence_id: str) -> FinishedRow | None:
        """Ends a row and discards its offloaded copy."""
        self._offloaded.discard(sequence_id)
        row = self._find(sequence_id)
        if row is None:
            return None
        self._remove(row)
        return row.result()

    @torch.inference_mode()
    def preempt(self, sequence_id: str) -> DecodingRequest:
        """Takes a row out, and offloads it if that is cheaper than another prefill."""
        row = self._find(sequence_id)
        if row is None:
            raise KeyError(sequence_id)
        self._offload(row)
        self._remove(row)
        return replace(row.sequence, generated_ids=tuple(row.generated), logprobs=tuple(row.logprobs))

    @torch.inference_mode()
    def record_graphs(self, within_s: float) -> list[int]:
        """Lets the device record its graphs of steps, the smallest first; returns the numbers of rows that have one.

        Without it, the first step with each number of rows would wait for the recording. Begins none after `within_s`
        seconds; returns [] on a device without graphs.
        """
        recorded, began, batch = list[int](), perf_counter(), self._batch
        if not (self.loaded.repeats_passes and self.loaded.in_blocks):
            return recorded
        try:
            for size in SIZES:
                self._begin(in_blocks=True)
                if perf_counter() - began >= within_s or self._kv.needed_bytes([2] * size) > self.kv_budget_bytes:
                    break
                batch.join(self._new_rows([DecodingRequest(str(row), (0,), limit=2) for row in range(size)]))
                batch.read(batch.prefill(dict.fromkeys(range(size), 1)))
                batch.reserve()
                batch.read(batch.step({}, ()))
                recorded.append(size)
        except torch.OutOfMemoryError:  # the pass needs memory, too; the graphs are lost with the cache
            batch.release_cache()
            recorded.clear()
        self._begin(in_blocks=True)
        batch.ended.clear()
        return recorded

    @property
    def max_positions(self) -> int:
        """The model's number of positions."""
        return self.loaded.max_positions

    @property
    def rows(self) -> dict[str, int]:
        """The number of generated tokens of each running or waiting row, and of finished rows not yet returned."""
        finished = {row.id: len(row.generated_ids) for row in self._steps.finished}
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
        """The bytes of the rectangle or of all blocks in use."""
        return self._kv.nbytes

    @property
    def prefilled_layers(self) -> int:
        """The number of layers that prefills have passed so far, which grows while a long prefill goes on."""
        return self._kv.prefilled_layers

    @property
    def figures(self) -> RunFigures:
        """The figures of all steps since the batch was last empty."""
        return self._steps.tally.figures()

    def _begin(self, in_blocks: bool) -> None:
        """Begins a run without rows; a static batch has its KV cache in a rectangle, as the papers count memory."""
        self._batch.clear(in_blocks)
        self._steps.begin()

    def _new_rows(self, sequences: Sequence[DecodingRequest]) -> list[BatchRow]:
        ids = set(self.rows)
        for sequence in sequences:
            if sequence.id in ids:
                raise ValueError(f"sequence {sequence.id} is running already")
            ids.add(sequence.id)
        stops = self._loop_stops
        return [new_row(self.loaded, sequence, next(self._entry_numbers), stops) for sequence in sequences]

    def _running_rows(self) -> Iterator[BatchRow]:
        return (row for row in (*self._batch.rows, *self._joiners.waiting) if row.running)

    def _find(self, sequence_id: str) -> BatchRow | None:
        return next((row for row in self._running_rows() if row.sequence.id == sequence_id), None)

    def _remove(self, row: BatchRow) -> None:
        self._batch.remove(row)
        self._joiners.remove(row)

    def _preempt(self) -> None:
        """Preempts rows until the next token stays below the threshold."""
        batch = self._batch
        while len(batch.rows) > 1 and not self._joiners.fits():
            if self._steps.read() is not None:  # some row may have ended
                batch.compact()
                continue
            longest = None if self._probe is None else self._probe.longest(batch.rows)
            chosen = longest or max(batch.rows, key=lambda row: row.entry_number)
            chosen.preempted = True
            self._offload(chosen)
            batch.leave(chosen)
            self._joiners.waiting.insert(0, chosen)

    def _offload(self, row: BatchRow) -> None:
        """Copies a row's keys and values to host memory if that is expected to take less time than another prefill."""
        computed_again = (
            row.sequence.prompt_logprobs or self.loaded.layout.state_bytes or row.unjoined or not row.generated
        )
        if row in self._batch.rows and not computed_again:  # only a prefill computes prompt_logprobs
            index, tally = self._batch.rows.index(row), self._steps.tally
            prefill_s = row.cached_tokens * tally.prefill_s / max(1, tally.prefilled_tokens)
            self._offloaded.offload(row.sequence.id, self._kv, index, row.token_ids[:-1], prefill_s)

    @contextmanager
    def _typed_out_of_memory(self, joining: Sequence[BatchRow] = ()) -> Iterator[None]:
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
                self._steps.forget()
                released = self._batch.release_cache()  # with a row that was just joining, which still waits as well
                self._joiners.waiting[:] = dict.fromkeys([*released, *self._joiners.waiting])
                release_unused()
            raise OutOfMemory(needed_bytes, self.kv_budget_bytes) from error
