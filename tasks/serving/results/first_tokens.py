"""Records when each row got its first token, by looking at the engine after each step; works with every engine."""

from collections.abc import Iterable

from inference.engine_requests import EngineRequest, FinishedRow
from inference.serving_engine import ServingEngine


class FirstTokens:
    """The rows that wait for their first token, without resumed ones, and the instants of first tokens until `take`."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._awaited: set[str] = set()
        self._at: dict[str, float] = {}

    def expect(self, rows: Iterable[EngineRequest]) -> None:
        """Notes the rows entering the engine that have no token yet; `look` records when their first ones come."""
        self._awaited.update(row.id for row in rows if not row.generated_ids)

    def look(self, at: float, ended: Iterable[FinishedRow] = ()) -> None:
        """Record first tokens that came by the instant `at`, also of the rows that `ended` in the last step."""
        if self._awaited:
            tokens = self._engine.rows | {row.id: row.tokens for row in ended}
            came = {row_id for row_id in self._awaited if tokens.get(row_id)}
            self._awaited -= came
            self._at |= dict.fromkeys(came, at)

    def take(self, row_id: str) -> float | None:
        """Return the instant of a leaving row's first token, or None if it got none here."""
        self._awaited.discard(row_id)
        return self._at.pop(row_id, None)
