"""The engine: two drivers of the one loop, run-to-completion (`run`) and continuous (`insert`, `step`, `remove`).

Run-to-completion keeps ended rows in their places until the whole batch is done: static batching, as the papers model
it. Continuous (BATON) gives the place of an ended row to the next joiner, or to the last row, at once.

An engine belongs to one thread. Running out of memory becomes `OutOfMemory` in one place, `_guarded`.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import torch

from inference.engine_errors import OutOfMemory
from inference.local.batch_rows import BatchRow, of_similar_length
from inference.local.kv_cache import COLUMN_STEP, BudgetExceeded, KvCache
from inference.local.model_loading import LoadedModel
from inference.local.row_parking import Parking
from inference.local.running_batch import RunningBatch
from inference.sequences import FinishedSequence, RunFigures, Sequence

MOST_PARKED_BYTES = 4 * 2**30  # of host memory: preempted rows may go on elsewhere and never ask for theirs


class Engine:
    """Generates for many sequences at once, over one model and one KV cache of at most `kv_budget_bytes`.

    Above `memory_threshold` of that budget a continuous batch sheds its youngest rows, and takes them back once there
    is room (BATON 4.3).
    """

    def __init__(self, loaded: LoadedModel, kv_budget_bytes: int, memory_threshold: float = 1.0) -> None:
        self.loaded, self.kv_budget_bytes = loaded, kv_budget_bytes
        self._threshold_bytes = int(memory_threshold * kv_budget_bytes)
        self._kv = KvCache(loaded.layout, kv_budget_bytes)
        self._batch = RunningBatch(loaded, self._kv)
        self._shed: list[BatchRow] = []  # rows that wait for memory, in the order in which they come back
        self._parking = Parking(min(kv_budget_bytes, MOST_PARKED_BYTES))
        self._numbers = count()

    @torch.inference_mode()
    def run(
        self,
        sequences: Several[Sequence],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedSequence]], None] | None = None,
    ) -> tuple[list[FinishedSequence], RunFigures]:
        """Serve a batch until every row ended or `iteration_limit` iterations are done; results in the order given.

        `on_progress` gets the rows that ended in each iteration; it may read `rows` and call `remove`.
        """
        if self.rows:
            raise ValueError(f"{len(self.rows)} rows are still running")
        batch, rows = self._batch, self._entering(sequences)
        batch.clear()
        try:
            with self._guarded(entering=rows):
                if rows:
                    batch.prefill(rows, range(len(rows)))
                self._report(on_progress)
                while batch.tally.iterations != iteration_limit and any(row.ended is None for row in rows):
                    batch.decode()
                    self._report(on_progress)
            return [row.result() for row in rows], self.figures
        finally:
            batch.rows, batch.ended = [], []

    @torch.inference_mode()
    def insert(self, sequences: Several[Sequence]) -> None:
        """Prefill rows, alike in length together, and let them join; after OutOfMemory none of them is here.

        A row that was preempted and whose keys and values are still parked goes on without a prefill.
        """
        if not self.rows:
            self._batch.clear()
        rows = self._entering(sequences)
        with self._guarded(entering=rows):
            if rows:
                self._join(rows)

    @torch.inference_mode()
    def step(self) -> list[FinishedSequence]:
        """One token for each running row; the rows that ended since the last step, with their answers.

        OutOfMemory: one row alone is too much, or the device itself ran out. The rows are still here, to be
        preempted or removed; those that stay are prefilled again.
        """
        batch = self._batch
        with self._guarded():
            batch.close_gaps()
            self._fit_into_memory()
            if batch.rows:
                batch.decode()
        return batch.take_ended()

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """End a row at once; None if it is not here."""
        self._parking.drop(sequence_id)
        row = self._find(sequence_id)
        if row is None:
            return None
        self._take_out(row)
        return row.result()

    @torch.inference_mode()
    def preempt(self, sequence_id: str) -> Sequence:
        """Take a row out and return it as it can be inserted again; KeyError if it is not here."""
        row = self._find(sequence_id)
        if row is None:
            raise KeyError(sequence_id)
        self._park(row)
        self._take_out(row)
        return replace(row.sequence, generated_ids=tuple(row.generated))

    @property
    def rows(self) -> dict[str, int]:
        """Tokens so far of each row that runs, or that ended and waits for the next step to say so."""
        ended = {row.id: len(row.generated_ids) for row in self._batch.ended}
        return ended | {row.sequence.id: len(row.generated) for row in self._running()}

    @property
    def kv_bytes(self) -> int:
        """Bytes that the KV cache holds now."""
        return self._kv.nbytes

    @property
    def figures(self) -> RunFigures:
        """Of the run, or of everything since a row joined an empty engine."""
        return self._batch.tally.figures()

    def _entering(self, sequences: Several[Sequence]) -> list[BatchRow]:
        here = self.rows
        for sequence in sequences:
            if sequence.id in here:
                raise ValueError(f"sequence {sequence.id} is running already")
            here[sequence.id] = 0
        return [BatchRow(sequence, next(self._numbers), self.loaded.max_positions) for sequence in sequences]

    def _running(self) -> Iterator[BatchRow]:
        return (row for row in (*self._batch.rows, *self._shed) if row.ended is None)

    def _find(self, sequence_id: str) -> BatchRow | None:
        return next((row for row in self._running() if row.sequence.id == sequence_id), None)

    def _take_out(self, row: BatchRow) -> None:
        self._batch.end(row)
        self._shed = [other for other in self._shed if other is not row]

    def _report(self, on_progress: Callable[[list[FinishedSequence]], None] | None) -> None:
        ended = self._batch.take_ended()
        if on_progress is not None:
            on_progress(ended)

    def _join(self, rows: list[BatchRow]) -> None:
        """Seat rows in gaps and behind the last row: parked ones as they were, the others by prefill."""
        batch = self._batch
        gaps = [place for place, row in enumerate(batch.rows) if row.ended is not None]
        size = len(batch.rows) + max(0, len(rows) - len(gaps))
        batch.make_room(size, max(row.cached for row in rows) + 1)  # for all of them at once, or for none
        places = [*gaps, *range(len(batch.rows), size)]
        parked = [row for row in rows if self._parking.holds(row.sequence.id, row.token_ids[:-1])]
        for row in parked:
            place = places.pop(0)
            self._parking.unpark(row.sequence.id, self._kv, place)
            batch.seat([row], [place])
        for group in of_similar_length(row for row in rows if row not in parked):
            batch.prefill(group, places[: len(group)])
            del places[: len(group)]

    def _fit_into_memory(self) -> None:
        """Shed the youngest rows if the next token would cross the threshold; take back the shed that have room."""
        batch = self._batch
        while len(batch.rows) > 1 and not self._fits(len(batch.rows), batch.width + 1):
            youngest = max(batch.rows, key=lambda row: row.number)
            self._park(youngest)
            batch.vacate(youngest)
            self._shed.insert(0, youngest)
        while self._shed:
            eldest = self._shed[0]
            if batch.rows and not self._fits(len(batch.rows) + 1, max(batch.width, eldest.cached) + COLUMN_STEP):
                break
            self._join([eldest])
            self._shed.remove(eldest)

    def _fits(self, rows: int, columns: int) -> bool:
        return rows * columns * self.loaded.delta_bytes <= self._threshold_bytes

    def _park(self, row: BatchRow) -> None:
        """Keep a row's keys and values in host memory where that is cheaper than to prefill it again."""
        if row in self._batch.rows:
            place, tally = self._batch.rows.index(row), self._batch.tally
            prefill_s = row.cached * tally.prefill_s / max(1, tally.prefilled_tokens)
            self._parking.park(row.sequence.id, self._kv, place, row.token_ids[:-1], prefill_s)

    @contextmanager
    def _guarded(self, entering: Several[BatchRow] = ()) -> Iterator[None]:
        """The one place where running out of memory becomes a typed error; rows that were entering are not here then.

        When the device itself ran out, the cache is given up, and the rows that ran wait to be prefilled again.
        """
        try:
            yield
        except (BudgetExceeded, torch.OutOfMemoryError) as error:
            for row in entering:
                self._take_out(row)
            needed = error.needed_bytes if isinstance(error, BudgetExceeded) else self._kv.nbytes
            if not isinstance(error, BudgetExceeded):
                self._shed[:0] = self._batch.give_up_cache()
                torch.cuda.empty_cache()
            raise OutOfMemory(needed, self.kv_budget_bytes) from error
