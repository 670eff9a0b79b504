"""Serves batches whose rows join the engine's running batch; each batch ends with its own last row."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

from inference.engine_errors import OutOfMemory
from inference.engine_requests import EngineRequest, FinishedRow
from inference.serving_engine import ServingEngine
from models.leasing.batch_results import BatchEnded, Figures, RowReturned
from models.leasing.requeue import Failure
from models.tables import BatchStatus
from tasks.serving.batches.batch_job import BatchJob
from tasks.serving.batches.serving_costs import DeviceSeconds
from tasks.serving.results.engine_events import Record, event_of_row
from tasks.serving.results.first_tokens import FirstTokens


@dataclass(eq=False, slots=True)
class _JoinedBatch:
    """A batch whose rows joined; `rows` has the rows that still run, as they were when they joined."""

    job: BatchJob
    began_at: float
    began_at_iteration: int
    rows: dict[str, EngineRequest]
    valid_tokens: int = 0
    generation_length: int = 0


class ContinuousBatches:
    """The open batches of one engine, from the first joiner until no row is left."""

    def __init__(self, engine: ServingEngine, record: Record) -> None:
        self._engine, self._record = engine, record
        self._batch_of_row: dict[str, _JoinedBatch] = {}  # the row that joined last is last
        self._reported = 0, 0  # pad and invalid tokens that are already in the figures of an ended batch
        self._seconds = DeviceSeconds()
        self._first = FirstTokens(engine)
        self._most_beside = sys.maxsize  # no batch joins beside more rows, because memory was short
        self.open: list[_JoinedBatch] = []

    def may_join(self, job: BatchJob) -> bool:
        """Returns whether this batch may join now, without waiting for running rows to leave."""
        rows = len(self._batch_of_row.keys() - set(job.preempts)) + len(job.sequences)
        return not self.lacks_memory(job) and (job.most_rows is None or rows <= job.most_rows)

    def lacks_memory(self, job: BatchJob) -> bool:
        """Returns whether memory has been short beside fewer rows than would run beside this batch's."""
        return bool(job.sequences) and len(self._batch_of_row.keys() - set(job.preempts)) > self._most_beside

    def admit(self, job: BatchJob) -> bool:
        """Preempts the rows that this batch names, then lets its own rows join.

        Returns False, and lets none join, if the budget is too small beside the running rows: then one must leave
        first. If the device has no memory left, the batch goes back to the planner.
        """
        self._return(job.preempts)
        if not self._engine.rows:
            self.step()  # collects rows that ended in their prefill; an empty engine forgets them at the next join
        rows = {sequence.id: sequence for sequence in job.sequences}
        for request_id in rows.keys() & self._batch_of_row.keys():  # rows under a lost lease that still run here
            self._engine.remove(request_id)
            self._row_left(request_id)
        alone = not self._batch_of_row
        if alone:
            self._reported = 0, 0  # an empty engine counts from 0 again once a row joins
        began_at, iterations = monotonic(), 0 if alone else self._engine.figures.iterations
        self._seconds.advance(began_at)
        if alone:  # only started batches are to blame if the process hangs in their prefill
            self._record(*job.began(began_at))
        try:
            if rows:
                self._engine.insert(job.sequences)
                self._most_beside = sys.maxsize
        except OutOfMemory as error:
            if not alone:
                self._limit_joins(error)
                if error.of_device:
                    self._record(BatchEnded(job.lease, BatchStatus.lost, monotonic()))
                return error.of_device
            if len(rows) == 1:
                (row,) = job.sequences
                self._record(RowReturned(job.lease, row.id, row.generated_ids, True, row.logprobs))
            # a batch too large for an empty engine must be split before it is tried again
            failure = Failure(job.lease.batch_id, OutOfMemory.__name__)
            self._record(BatchEnded(job.lease, BatchStatus.out_of_memory, monotonic(), failure=failure))
            return True
        if not alone:
            self._record(*job.began(began_at))
        at = monotonic()
        self._seconds.join({row.id: row.length for row in job.sequences}, at)
        self._first.expect(job.sequences)
        self._first.look(at)
        batch = _JoinedBatch(job, began_at, iterations, rows)
        self.open.append(batch)
        self._batch_of_row.update(dict.fromkeys(rows, batch))
        self._close_if_empty(batch)
        return True

    def step(self) -> None:
        """Generate one token for each row; if they outgrow the memory, the row that joined last is returned."""
        try:
            ended = self._engine.step()
        except OutOfMemory as error:
            youngest = next(reversed(self._batch_of_row))
            self._return([youngest], outgrew=len(self._batch_of_row) == 1)
            self._limit_joins(error)
            return
        at = monotonic()
        self._seconds.advance(at)
        self._first.look(at, ended)
        for row in ended:
            if row.id in self._batch_of_row:
                self._answer(row, at)

    def _limit_joins(self, error: OutOfMemory) -> None:
        """Lets none join until a row has left, or half of them if each attempt costs the prefill of all rows."""
        rows = len(self._batch_of_row)
        self._most_beside = rows // 2 if error.of_device else rows - 1

    def remove(self, request_ids: frozenset[str]) -> None:
        """Ends those rows of these requests that run here; their answers are the tokens that they have."""
        for request_id in request_ids & self._batch_of_row.keys():
            row = self._engine.remove(request_id)
            if row is not None:
                self._answer(row, monotonic())

    def abandon(self, batch_ids: frozenset[int]) -> None:
        """Drop the rows of these batches, whose leases are lost, without writing any results."""
        for batch in [batch for batch in self.open if batch.job.lease.batch_id in batch_ids]:
            for request_id in list(batch.rows):
                self._engine.remove(request_id)
                self._row_left(request_id)

    def return_rows(self) -> None:
        """Return every row to the queue with the tokens generated so far."""
        self._return(list(self._batch_of_row))

    def _return(self, request_ids: Iterable[str], outgrew: bool = False) -> None:
        for request_id in [request_id for request_id in request_ids if request_id in self._batch_of_row]:
            try:
                sequence = self._engine.preempt(request_id)
            except KeyError:  # the row ended in its prefill, and the next step returns it among the ended rows
                continue
            batch = self._batch_of_row[request_id]
            gpu_s = self._seconds.leave(request_id)
            first_at = self._first.take(request_id)
            returned = RowReturned(
                batch.job.lease, request_id, sequence.generated_ids, outgrew, sequence.logprobs, gpu_s, first_at
            )
            self._record(returned)
            self._row_left(request_id, len(sequence.generated_ids))

    def _answer(self, row: FinishedRow, at: float) -> None:
        batch = self._batch_of_row[row.id]
        gpu_s = self._seconds.leave(row.id)
        self._record(event_of_row(batch.job.lease, batch.rows[row.id], row, at, gpu_s, self._first.take(row.id)))
        self._row_left(row.id, row.tokens)

    def _row_left(self, request_id: str, generated: int | None = None) -> None:
        """Counts the tokens that the row gained here (`generated` is its total); ends its batch after the last row."""
        self._seconds.leave(request_id)  # no request is charged for the seconds under a lost lease
        self._first.take(request_id)
        batch = self._batch_of_row.pop(request_id)
        sequence = batch.rows.pop(request_id)
        gained = 0 if generated is None else generated - len(sequence.generated_ids)
        batch.valid_tokens += gained
        batch.generation_length = max(batch.generation_length, gained)
        self._close_if_empty(batch)

    def _close_if_empty(self, batch: _JoinedBatch) -> None:
        if batch.rows:
            return
        self.open.remove(batch)
        at, run = monotonic(), self._engine.figures
        reported_pad, reported_invalid = self._reported
        figures = Figures(
            serving_s=at - batch.began_at,
            iterations=run.iterations - batch.began_at_iteration,
            generation_length=batch.generation_length,
            valid_tokens=batch.valid_tokens,
            pad_tokens=run.pad_tokens - reported_pad,
            invalid_tokens=run.invalid_tokens - reported_invalid,
            peak_kv_bytes=run.peak_kv_bytes,
        )
        self._reported = run.pad_tokens, run.invalid_tokens
        self._record(BatchEnded(batch.job.lease, BatchStatus.finished, at, figures))
