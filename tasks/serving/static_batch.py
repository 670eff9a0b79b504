"""One batch that runs to completion: every row ends by itself, by its limit, or with the batch's iteration limit."""

from collections.abc import Callable
from time import monotonic

from inference.engine_errors import OutOfMemory
from inference.local.engine import Engine
from inference.sequences import FinishedSequence, RunFigures
from models.batch_results import Figures
from models.tables import BatchStatus
from tasks.serving.batch_job import BatchJob
from tasks.serving.engine_events import BatchEnded, Event, RowEnded, RowReturned


class StaticBatch:
    """Serves one batch; `remove`, `abandon` and `give_back` are for use between steps."""

    def __init__(self, engine: Engine, work: BatchJob, say: Callable[[Event], None]) -> None:
        self._engine, self._work, self._say = engine, work, say
        self._stops = {sequence.id: sequence.stop for sequence in work.sequences}
        self._abandoned = False

    def serve(self, on_step: Callable[[], None]) -> None:
        """Run the batch and say what came of it; `on_step` is called after each iteration."""
        work, began = self._work, monotonic()
        if not work.sequences:
            self._say(BatchEnded(work.lease, BatchStatus.finished, began))
            return
        try:
            ended, figures = self._engine.run(work.sequences, work.iteration_limit, lambda _: on_step())
        except OutOfMemory:
            self._say(BatchEnded(work.lease, BatchStatus.out_of_memory, monotonic()))
            return
        at = monotonic()
        if self._abandoned:
            return
        for row in ended:
            if row.reason == "unfinished":
                self._say(RowReturned(work.lease, row.id, row.generated_ids))
            elif row.reason != "removed":  # of that one was said already what became of it
                self._say(RowEnded(work.lease, row, self._stops[row.id], at))
        self._say(BatchEnded(work.lease, BatchStatus.finished, at, _figures(figures, at - began)))

    def remove(self, request_ids: frozenset[str]) -> None:
        """End rows on request."""
        for row in self._take_out(request_ids):
            self._say(RowEnded(self._work.lease, row, (), monotonic()))

    def abandon(self, batch_ids: frozenset[int]) -> None:
        """Drop the batch if it is one of these."""
        if self._work.lease.batch_id in batch_ids:
            self._abandoned = True
            self._take_out(self._stops)

    def give_back(self) -> None:
        """Let every row that still runs go back to the queue with what was generated."""
        for row in self._take_out(self._stops):
            self._say(RowReturned(self._work.lease, row.id, row.generated_ids))

    def _take_out(self, request_ids: frozenset[str] | dict[str, tuple[str, ...]]) -> list[FinishedSequence]:
        mine = [request_id for request_id in request_ids if request_id in self._stops]
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
