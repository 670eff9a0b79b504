"""An engine without a model: every row gains one token a step and ends at its limit. Budgets are counted in rows."""

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import replace
from types import SimpleNamespace

from inference.engine_errors import OutOfMemory
from inference.sequences import FinishedSequence, RunFigures, Sequence
from models.leases import Lease
from tasks.serving.batch_job import BatchJob


class ScriptedEngine:
    """What `tasks.serving` calls of inference.local.engine.Engine."""

    def __init__(self, most_rows: int = 100) -> None:
        self.loaded = SimpleNamespace(max_positions=100)
        self.most_rows = most_rows
        self.error: Exception | None = None  # raised by the next run or step
        self._sequences: dict[str, Sequence] = {}
        self._generated: dict[str, int] = {}
        self._iterations = 0

    @property
    def rows(self) -> dict[str, int]:
        return dict(self._generated)

    @property
    def figures(self) -> RunFigures:
        return RunFigures(len(self._sequences), 1, self._iterations, 0, 0, 0, 0, 0, 0.0, 0.0)

    def run(
        self,
        sequences: Several[Sequence],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedSequence]], None] | None = None,
    ) -> tuple[list[FinishedSequence], RunFigures]:
        self.insert(sequences)
        ended: dict[str, FinishedSequence] = {}
        while self._generated and self._iterations != iteration_limit:
            ended |= {row.id: row for row in self.step()}
            if on_progress is not None:
                on_progress([])
        ended |= {row.id: row for row in [self._take(left, "unfinished") for left in list(self._generated)]}
        return [ended.get(s.id, FinishedSequence(s.id, (), "removed")) for s in sequences], self.figures

    def insert(self, sequences: Several[Sequence]) -> None:
        if len(self._generated) + len(sequences) > self.most_rows:
            raise OutOfMemory(len(sequences), self.most_rows)
        if not self._generated:
            self._iterations = 0
        for sequence in sequences:
            self._sequences[sequence.id] = sequence
            self._generated[sequence.id] = len(sequence.generated_ids)

    def step(self) -> list[FinishedSequence]:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self._iterations += 1
        for request_id in self._generated:
            self._generated[request_id] += 1
        full = [row for row, generated in self._generated.items() if generated >= self._sequences[row].limit]
        return [self._take(request_id, "limit") for request_id in full]

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        return self._take(sequence_id, "removed") if sequence_id in self._generated else None

    def preempt(self, sequence_id: str) -> Sequence:
        generated = self._generated.pop(sequence_id)
        return replace(self._sequences[sequence_id], generated_ids=(7,) * generated)

    def _take(self, request_id: str, reason: str) -> FinishedSequence:
        return FinishedSequence(request_id, (7,) * self._generated.pop(request_id), reason)  # type: ignore[arg-type]


def job(
    batch_id: int, *rows: Sequence, joins: bool = False, iteration_limit: int | None = None, preempts=()
) -> BatchJob:
    return BatchJob(Lease(batch_id, 1), joins, iteration_limit, tuple(preempts), rows)


def row(id: str, limit: int = 3) -> Sequence:
    return Sequence(id, (1, 2), limit)
