"""The interface of every engine: what a worker's engine thread asks of ours and of a server's alike."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from typing import Protocol

from inference.sequences import FinishedSequence, Generated, RunFigures, Sequence


class ServingEngine(Protocol):
    """Generates for many sequences at once; one thread owns it. `docs/adding-an-engine.md` has its guarantees."""

    @property
    def max_positions(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        ...

    @property
    def rows(self) -> dict[str, int]:
        """Generated tokens of each row that is running, or that finished and was not yet returned by `step`."""
        ...

    @property
    def kv_bytes(self) -> int:
        """Bytes that the KV cache holds now."""
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
        """Serve a batch until every row finished or for `iteration_limit` iterations; results keep the order."""
        ...

    def insert(self, sequences: Several[Sequence]) -> None:
        """Let all rows join the running batch; raises OutOfMemory and lets none join if they do not fit."""
        ...

    def step(self) -> list[FinishedSequence]:
        """Generate about one token a row; returns the rows that finished since the last step."""
        ...

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Return the tokens that each running row has generated after its first `since[id]`, by row id."""
        ...

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """Finish a row at once; None if it is not running."""
        ...

    def preempt(self, sequence_id: str) -> Sequence:
        """Take a row out and return the sequence that `insert` resumes it from; KeyError if it is not running."""
        ...
