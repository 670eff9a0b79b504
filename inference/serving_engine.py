"""The interface that a worker's engine thread calls, the same for our own engine and for one in another server."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from inference.engine_requests import EngineRequest, FinishedRow, Generated, RunFigures


class ServingEngine(Protocol):
    """Answers many requests at once, for one thread. `docs/adding-an-engine.md` has its guarantees.

    The requests are DecodingRequests, or PoolingRequests if the engine computes vectors or scores.
    """

    @property
    def max_positions(self) -> int:
        """The most tokens that a prompt and its answer may have together."""

    @property
    def rows(self) -> dict[str, int]:
        """The number of generated tokens by id, for rows that run or that `step` has not returned yet."""

    @property
    def kv_bytes(self) -> int:
        """The bytes of KV cache that rows take now."""

    @property
    def prefilled_layers(self) -> int:
        """A number that grows while a long step computes prompts; 0 for an engine whose steps are short."""

    @property
    def figures(self) -> RunFigures:
        """The figures of the last `run`, or of everything since rows were inserted into an empty engine."""

    def run(
        self,
        sequences: Sequence[Any],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedRow]], None] = ...,
    ) -> tuple[list[FinishedRow], RunFigures]:
        """Serves a batch until its rows have finished or had `iteration_limit` iterations; returns the rows in order.

        `on_progress` gets the rows that finished, and may call `remove`.
        """

    def insert(self, sequences: Sequence[Any]) -> None:
        """Adds all rows to the running batch, or adds none and raises OutOfMemory."""

    def step(self) -> list[FinishedRow]:
        """Computes about one token for each row; returns the rows that finished since the last step."""

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns, by id, the output of each running row behind its first `since[id]` tokens."""

    def remove(self, sequence_id: str) -> FinishedRow | None:
        """Ends a row at once and returns it; returns None if it is not running."""

    def preempt(self, sequence_id: str) -> Any:
        """Takes a row out and returns the sequence that `insert` resumes; raises KeyError if the row does not run."""


def run_to_the_end(
    engine: ServingEngine, sequences: Sequence[EngineRequest], on_progress: Callable[[list[FinishedRow]], None]
) -> tuple[list[FinishedRow], RunFigures]:
    """Steps until no row is left; returns the given rows in order, as `removed` unless they ended, and the figures."""
    results = {one.id: FinishedRow(one.id, one.generated_ids, "removed") for one in sequences}
    while True:
        ended = engine.step()
        results.update((row.id, row) for row in ended)
        on_progress(ended)
        if not engine.rows:
            return [results[one.id] for one in sequences], engine.figures
