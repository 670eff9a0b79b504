"""The product's engine as the benchmark drives it: prompts in order of arrival, never more than a batch of rows."""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import TypeVar

from inference.local.engine import Engine
from inference.local.model_loading import LoadedModel
from inference.sequences import Sequence

T = TypeVar("T")

KV_BUDGET_BYTES = 2**40  # memory is not what is compared


@dataclass(slots=True)
class EngineRun:
    """What an engine did: answers by id, and its rows counted at each iteration."""

    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    computed: int = 0  # rows x iterations
    idle: int = 0  # of the batch's places, those without a running row while work waited
    places: int = 0  # places x iterations while work waited
    peak_kv_bytes: int = 0

    def count(self, batch: int, rows: int, running: int, work_waits: bool) -> None:
        """One iteration over `rows` rows, of which `running` had not ended."""
        self.computed += rows
        if work_waits:
            self.idle += batch - running
            self.places += batch

    def held(self, kv_bytes: int) -> None:
        """The key-value cache had this size."""
        self.peak_kv_bytes = max(self.peak_kv_bytes, kv_bytes)


def in_batches(waiting: Several[T], batch: int) -> Iterator[Several[T]]:
    """Fixed batches in order of arrival."""
    return (waiting[start : start + batch] for start in range(0, len(waiting), batch))


def count_static(served: EngineRun, batch: int, rows: Several[Sequence], work_waits: bool) -> None:
    """The iterations of a batch that runs until its longest answer is done."""
    for iteration in range(max(row.limit for row in rows)):
        served.count(batch, len(rows), sum(row.limit > iteration for row in rows), work_waits)


class RunToCompletion:
    """Our engine, one fixed batch after the other."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._engine = Engine(loaded, KV_BUDGET_BYTES)

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve everything."""
        served = EngineRun()
        for rows in in_batches(sequences, batch):
            results, figures = self._engine.run(rows)
            served.answers |= {row.id: row.generated_ids for row in results}
            served.held(figures.peak_kv_bytes)
            count_static(served, batch, rows, work_waits=rows[-1] is not sequences[-1])
        return served


class Continuous:
    """Our engine with a joiner for each row that ends: BATON with prefill and decoding decoupled (BATON-PD)."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._engine = Engine(loaded, KV_BUDGET_BYTES)

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve everything."""
        served, engine, waiting = EngineRun(), self._engine, deque(sequences)
        while waiting or engine.rows:
            joiners = min(batch - len(engine.rows), len(waiting))
            engine.insert([waiting.popleft() for _ in range(joiners)])
            running = len(engine.rows)
            for row in engine.step():
                served.answers[row.id] = row.generated_ids
            served.count(batch, running, running, work_waits=bool(waiting))
            served.held(engine.kv_bytes)
        return served
