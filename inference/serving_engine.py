"""The interface that a worker's engine thread calls, the same for our own engine and for one in another server."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from typing import Protocol

from inference.sequences import FinishedSequence, Generated, RunFigures, Sequence


class ServingEngine(Protocol):
    """Generates tokens for many sequences at once, for one thread. `docs/adding-an-engine.md` has its guarantees."""

    @property
    def max_positions(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        ...

    @property
    def rows(self) -> dict[str, int]:
        """The number of generated tokens by id, for rows that run or that `step` has not returned yet."""
        ...

    @property
    def kv_bytes(self) -> int:
        """The bytes of KV cache that rows take now."""
        ...

    @property
    def figures(self) -> RunFigures:
        """The figures of the last `run`, or of everything since rows were inserted into an empty engine."""
        ...

    def run(
        self,
        sequences: Several[Sequence],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedSequence]], None] = ...,
    ) -> tuple[list[FinishedSequence], RunFigures]:
        """Serves a batch until its rows finished or did `iteration_limit` iterations; returns them in order.

        `on_progress` gets the rows that finished, and may call `remove`.
        """
        ...

    def insert(self, sequences: Several[Sequence]) -> None:
        """Adds all rows to the running batch, or adds none and raises OutOfMemory."""
        ...

    def step(self) -> list[FinishedSequence]:
        """Computes about one token for each row; returns the rows that finished since the last step."""
        ...

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns, by id, the output of each running row behind its first `since[id]` tokens."""
        ...

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """Ends a row at once and returns it; returns None if it is not running."""
        ...

    def preempt(self, sequence_id: str) -> Sequence:
        """Takes a row out and returns the sequence that `insert` resumes; raises KeyError if the row does not run."""
        ...
