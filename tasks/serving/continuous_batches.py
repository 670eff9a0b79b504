"""Batches whose rows join the engine's running batch: each ends when its rows have, whoever else is there."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from inference.engine_errors import OutOfMemory
from inference.local.engine import Engine
from inference.sequences import FinishedSequence, Sequence
from models.batch_results import Figures
from models.tables import BatchStatus
from tasks.serving.batch_job import BatchJob
from tasks.serving.engine_events import BatchEnded, Event, RowEnded, RowFailed, RowReturned


@dataclass(eq=False, slots=True)
class _Joined:
    """A batch that joined, with those of its rows that have not left."""

    work: BatchJob
    began: float
    began_at_iteration: int
    rows: dict[str, Sequence]
    valid_tokens: int = 0
    generation_length: int = 0


@dataclass(slots=True)
class _Accounted:
    """Tokens of the engine's figures that some ended batch has answered for."""

    pad: int = 0
    invalid: int = 0


class ContinuousBatches:
    """The joined batches of one engine, from the first joiner until it is empty again."""

    def __init__(self, engine: Engine, say: Callable[[Event], None]) -> None:
        self._engine, self._say = engine, say
        self._of_row: dict[str, _Joined] = {}  # youngest last
        self._accounted = _Accounted()
        self.batches: list[_Joined] = []

    def admit(self, work: BatchJob) -> None:
        """Let running rows leave whom this batch preempts, and its own rows join, all or none."""
        self._return(work.preempts)
        if not self._engine.rows:
            self.step()  # rows that ended in their prefill: an empty engine starts afresh and would forget them
        rows = {sequence.id: sequence for sequence in work.sequences}
        for stale in rows.keys() & self._of_row.keys():  # of a lease that was lost and not yet abandoned
            self._engine.remove(stale)
            self._left(stale)
        alone = not self._of_row
        if alone:
            self._accounted = _Accounted()  # as the engine, which counts from its first joiner on
        began, iterations = monotonic(), 0 if alone else self._engine.figures.iterations
        try:
            if rows:
                self._engine.insert(work.sequences)
        except OutOfMemory as error:
            if alone and len(rows) == 1:
                self._fail(work, work.sequences[0].id, error)
                self._say(BatchEnded(work.lease, BatchStatus.finished, monotonic()))
            else:
                self._say(BatchEnded(work.lease, BatchStatus.out_of_memory, monotonic()))
            return
        joined = _Joined(work, began, iterations, rows)
        self.batches.append(joined)
        self._of_row.update(dict.fromkeys(rows, joined))
        self._close_if_empty(joined)

    def step(self) -> None:
        """One token for each row; when they outgrow the memory the youngest goes back to the queue."""
        try:
            ended = self._engine.step()
        except OutOfMemory as error:
            youngest = next(reversed(self._of_row))
            if len(self._of_row) == 1:
                self._engine.remove(youngest)
                self._fail(self._of_row[youngest].work, youngest, error)
                self._left(youngest)
            else:
                self._return([youngest])
            return
        at = monotonic()
        for row in ended:
            if row.id in self._of_row:
                self._answer(row, at)

    def remove(self, request_ids: frozenset[str]) -> None:
        """End rows on request."""
        for request_id in request_ids & self._of_row.keys():
            row = self._engine.remove(request_id)
            if row is not None:
                self._answer(row, monotonic())

    def abandon(self, batch_ids: frozenset[int]) -> None:
        """Drop the rows of these batches."""
        for joined in [joined for joined in self.batches if joined.work.lease.batch_id in batch_ids]:
            for request_id in list(joined.rows):
                self._engine.remove(request_id)
                self._left(request_id)

    def give_back(self) -> None:
        """Let every row go back to the queue with what was generated."""
        self._return(list(self._of_row))

    def _return(self, request_ids: Iterable[str]) -> None:
        for request_id in [request_id for request_id in request_ids if request_id in self._of_row]:
            try:
                sequence = self._engine.preempt(request_id)
            except KeyError:  # it ended in its prefill, and the next step says so
                continue
            joined = self._of_row[request_id]
            self._say(RowReturned(joined.work.lease, request_id, sequence.generated_ids))
            self._left(request_id, len(sequence.generated_ids))

    def _answer(self, row: FinishedSequence, at: float) -> None:
        joined = self._of_row[row.id]
        self._say(RowEnded(joined.work.lease, row, joined.rows[row.id].stop, at))
        self._left(row.id, len(row.generated_ids))

    def _fail(self, work: BatchJob, request_id: str, error: OutOfMemory) -> None:
        message = f"The request alone does not fit into the worker's memory: {error}."
        self._say(RowFailed(work.lease, request_id, "out_of_memory", message, monotonic()))

    def _left(self, request_id: str, generated: int | None = None) -> None:
        joined = self._of_row.pop(request_id)
        sequence = joined.rows.pop(request_id)
        gained = 0 if generated is None else generated - len(sequence.generated_ids)
        joined.valid_tokens += gained
        joined.generation_length = max(joined.generation_length, gained)
        self._close_if_empty(joined)

    def _close_if_empty(self, joined: _Joined) -> None:
        if joined.rows:
            return
        self.batches.remove(joined)
        at, run = monotonic(), self._engine.figures
        figures = Figures(
            serving_s=at - joined.began,
            iterations=run.iterations - joined.began_at_iteration,
            generation_length=joined.generation_length,
            valid_tokens=joined.valid_tokens,
            pad_tokens=run.pad_tokens - self._accounted.pad,
            invalid_tokens=run.invalid_tokens - self._accounted.invalid,
            peak_kv_bytes=run.peak_kv_bytes,
        )
        self._accounted = _Accounted(run.pad_tokens, run.invalid_tokens)
        self._say(BatchEnded(joined.work.lease, BatchStatus.finished, at, figures))
