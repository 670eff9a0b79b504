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
        """What the last `run` cost, or everything since rows were inserted into an empty engine."""
        ...

    def run(
        self,
        sequences: Several[Sequence],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedSequence]], None] = ...,
    ) -> tuple[list[FinishedSequence], RunFigures]:
        """Serve a batch until every row finished or for so many iterations; results in the order given."""
        ...

    def insert(self, sequences: Several[Sequence]) -> None:
        """Let rows join the running batch: all of them, or none and OutOfMemory."""
        ...

    def step(self) -> list[FinishedSequence]:
        """Go on for about one token a row; returns the rows that finished since the last step."""
        ...

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """What those of these rows that are running have generated after so many tokens each; rows by their ids."""
        ...

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """Finish a row at once; None if it is not running."""
        ...

    def preempt(self, sequence_id: str) -> Sequence:
        """Take a row out and return the sequence that `insert` resumes it from; KeyError if it is not running."""
        ...
