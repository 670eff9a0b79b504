"""Our engine as the benchmark drives it: prompts in order of arrival, at most `batch` rows at once."""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import TypeVar

from inference.local.engine import Engine
from inference.local.model_loading import LoadedModel
from inference.sequences import Sequence

T = TypeVar("T")

KV_BUDGET_BYTES = 2**34  # any value above the rows' need does: the budget is not what is compared


@dataclass(slots=True)
class EngineRun:
    """What an engine did: answers by id, and sums over its iterations."""

    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    computed_tokens: int = 0  # rows x iterations
    idle_rows: int = 0  # rows of `batch` that were not running while prompts waited, summed over iterations
    possible_rows: int = 0  # `batch` summed over the same iterations
    peak_kv_bytes: int = 0

    def count_iteration(self, batch: int, rows: int, running: int, prompts_wait: bool) -> None:
        """One iteration over `rows` rows, of which `running` had not finished."""
        self.computed_tokens += rows
        if prompts_wait:
            self.idle_rows += batch - running
            self.possible_rows += batch

    def count_memory(self, kv_bytes: int) -> None:
        """The KV cache had this size."""
        self.peak_kv_bytes = max(self.peak_kv_bytes, kv_bytes)


def in_batches(waiting: Several[T], batch: int) -> Iterator[Several[T]]:
    """Fixed batches in order of arrival."""
    return (waiting[start : start + batch] for start in range(0, len(waiting), batch))


def count_static_batch(run: EngineRun, batch: int, rows: Several[Sequence], prompts_wait: bool) -> None:
    """Count the iterations of a batch that runs until its longest answer is done."""
    for iteration in range(max(row.limit for row in rows)):
        run.count_iteration(batch, len(rows), sum(row.limit > iteration for row in rows), prompts_wait)


class RunToCompletion:
    """Our engine with static batching: one fixed batch after the other."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._engine = Engine(loaded, KV_BUDGET_BYTES)

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve all sequences."""
        run = EngineRun()
        for rows in in_batches(sequences, batch):
            results, figures = self._engine.run(rows)
            run.answers |= {row.id: row.generated_ids for row in results}
            run.count_memory(figures.peak_kv_bytes)
            count_static_batch(run, batch, rows, prompts_wait=rows[-1] is not sequences[-1])
        return run


class Continuous:
    """Our engine with continuous batching: a prompt joins for each row that finishes, as in BATON-PD."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._engine = Engine(loaded, KV_BUDGET_BYTES)

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve all sequences."""
        run, engine, waiting = EngineRun(), self._engine, deque(sequences)
        while waiting or engine.rows:
            joiners = min(batch - len(engine.rows), len(waiting))
            engine.insert([waiting.popleft() for _ in range(joiners)])
            running = len(engine.rows)
            for row in engine.step():
                run.answers[row.id] = row.generated_ids
            run.count_iteration(batch, running, running, prompts_wait=bool(waiting))
            run.count_memory(engine.kv_bytes)
        return run
