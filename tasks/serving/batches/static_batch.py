"""Serves one batch to completion: until every row has ended, or until the batch's iteration limit."""

from collections.abc import Callable, Iterable
from time import monotonic

from inference.engine_errors import OutOfMemory
from inference.engine_requests import FinishedRow, RunFigures
from inference.serving_engine import ServingEngine
from models.leasing.batch_results import BatchEnded, Figures, RowReturned
from models.tables import BatchStatus
from tasks.serving.batches.batch_job import BatchJob
from tasks.serving.batches.serving_costs import by_tokens
from tasks.serving.results.engine_events import EngineEvent, RowEnded, event_of_row
from tasks.serving.results.first_tokens import FirstTokens


class StaticBatch:
    """Serves one batch; `remove`, `abandon` and `return_rows` may only be called between two steps."""

    def __init__(self, engine: ServingEngine, job: BatchJob, record: Callable[[EngineEvent], None]) -> None:
        self._engine, self._job, self._record = engine, job, record
        self._rows = {sequence.id: sequence for sequence in job.sequences}
        self._abandoned = False
        self._began = monotonic()
        self._first = FirstTokens(engine)
        self._left_early_s = 0.0  # device seconds charged to rows that left before the end

    def serve(self, on_step: Callable[[], None]) -> None:
        """Runs the batch, and records how the batch and its rows ended; calls `on_step` after each iteration."""
        job, self._began = self._job, monotonic()
        if not job.sequences:
            self._record(BatchEnded(job.lease, BatchStatus.finished, self._began))
            return
        self._first.expect(job.sequences)

        def after_iteration(finished: list[FinishedRow]) -> None:
            self._first.look(monotonic(), finished)
            on_step()

        try:
            ended, figures = self._engine.run(job.sequences, job.iteration_limit, after_iteration)
        except OutOfMemory:
            if len(job.sequences) == 1:
                (alone,) = job.sequences
                self._record(RowReturned(job.lease, alone.id, alone.generated_ids, True, alone.logprobs))
            self._record(BatchEnded(job.lease, BatchStatus.out_of_memory, monotonic()))
            return
        at = monotonic()
        if self._abandoned:
            return
        gpu_s = by_tokens(
            at - self._began - self._left_early_s,
            {row.id: self._computed_tokens(row) for row in ended if row.reason != "removed"},
        )
        for row in ended:
            if row.reason != "removed":  # a removed row was recorded when it was removed
                first_at = self._first.take(row.id)
                self._record(event_of_row(job.lease, self._rows[row.id], row, at, gpu_s[row.id], first_at))
        self._record(BatchEnded(job.lease, BatchStatus.finished, at, _figures(figures, at - self._began)))

    def _computed_tokens(self, row: FinishedRow) -> int:
        """Returns the number of tokens that the engine computed for a row: its prefill and what it generated."""
        asked = self._rows[row.id]
        return asked.length + row.tokens - len(asked.generated_ids)

    def _share_so_far_s(self) -> float:
        """Returns the device seconds of a row that leaves now, an even share: all rows had as many iterations."""
        share_s = (monotonic() - self._began) / len(self._rows)
        self._left_early_s += share_s
        return share_s

    def remove(self, request_ids: frozenset[str]) -> None:
        """Ends those rows of these requests that are in this batch; their answers are the tokens that they have."""
        for row in self._take_out(request_ids):
            form, share_s = self._rows[row.id].answer_form, self._share_so_far_s()
            first_at = self._first.take(row.id)
            ended = RowEnded(
                self._job.lease, row, (), monotonic(), gpu_s=share_s, answer_form=form, first_token_at=first_at
            )
            self._record(ended)

    def abandon(self, batch_ids: frozenset[int]) -> None:
        """Ends this batch without recording anything more, if `batch_ids` has its id."""
        if self._job.lease.batch_id in batch_ids:
            self._abandoned = True
            self._take_out(self._rows)

    def return_rows(self) -> None:
        """Return every running row to the queue with the tokens generated so far."""
        for row in self._take_out(self._rows):
            gpu_s, at = self._share_so_far_s(), self._first.take(row.id)
            ids, logprobs = row.generated_ids, row.logprobs
            self._record(RowReturned(self._job.lease, row.id, ids, logprobs=logprobs, gpu_s=gpu_s, first_token_at=at))

    def _take_out(self, request_ids: Iterable[str]) -> list[FinishedRow]:
        mine = [request_id for request_id in request_ids if request_id in self._rows]
        return [row for request_id in mine if (row := self._engine.remove(request_id)) is not None]


def _figures(run: RunFigures, serving_s: float) -> Figures:
    return Figures(
        serving_s=serving_s,
        iterations=run.iterations,
        generation_length=run.generation_length,
        valid_tokens=run.valid_tokens,
        pad_tokens=run.pad_tokens,
        invalid_tokens=run.invalid_tokens,
        peak_kv_bytes=run.peak_kv_bytes,
    )
