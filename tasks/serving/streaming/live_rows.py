"""Rows whose tokens somebody reads while they are generated: after each step the engine's thread passes them on.

A step while nobody reads costs two looks.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from inference.sequences import Generated
from inference.serving_engine import ServingEngine


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What the rows that somebody reads gained since the last time, by their ids."""

    generated: Mapping[str, Generated]
    begun: frozenset[str]  # of these it is everything
    wanted: frozenset[str]  # of these somebody lacks the beginning
    gone: frozenset[str]  # these run no more


class LiveRows:
    """Belongs to the engine's thread; any thread may `ask`."""

    def __init__(self, publish: Callable[[StepTokens], None]) -> None:
        """`publish` must return at once."""
        self._publish = publish
        self._since: dict[str, int] = {}  # tokens passed on, by row
        self._begun: set[str] = set()
        self._asked: SimpleQueue[Collection[str]] = SimpleQueue()

    def ask(self, ids: Collection[str]) -> None:
        """Somebody lacks the beginnings of these answers; whichever run here are passed on whole, and then further."""
        self._asked.put(ids)

    def begin(self, ids: Collection[str]) -> None:
        """These rows, which somebody reads, enter the engine before the next `collect`."""
        self._since.update(dict.fromkeys(ids, 0))
        self._begun.update(ids)

    def collect(self, engine: ServingEngine) -> None:
        """Pass on what was generated since the last call."""
        if self._since or not self._asked.empty():
            self._collect(engine)

    def _collect(self, engine: ServingEngine) -> None:
        asked: set[str] = set()
        while not self._asked.empty():
            asked.update(self._asked.get())
        new = asked - self._since.keys()
        self.begin(new)
        generated = engine.generated(self._since)
        gone = self._since.keys() - generated.keys()
        running = generated.keys()
        for row_id in gone:
            del self._since[row_id]
        for row_id, row in generated.items():
            self._since[row_id] += len(row.ids)
        step = StepTokens(
            generated, frozenset(self._begun & running), frozenset(asked & running), frozenset(gone - new)
        )
        if step.generated or step.gone:
            self._publish(step)
        self._begun.clear()
