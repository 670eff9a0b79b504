"""Tells for how long a pool has given no connection because all of them were in use."""

from collections.abc import Callable
from time import monotonic

from sqlalchemy import Engine, QueuePool, event


class PoolWatch:
    """Watches an engine's pool. Statements are bounded, so only our own code can hold all connections for a minute.

    While Postgres gives no answer, each statement or connection that fails counts as a connection that was given.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = monotonic) -> None:
        self._engine, self._clock, self._given_at = engine, clock, clock()
        event.listen(engine, "checkout", self._given)
        event.listen(engine, "handle_error", self._given)

    def held_s(self) -> float:
        """Returns the seconds since the pool gave its last connection, or 0 while it has a free one."""
        pool = self._engine.pool
        full = isinstance(pool, QueuePool) and pool.checkedout() >= pool.size()
        return self._clock() - self._given_at if full else 0.0

    def _given(self, *_: object) -> None:
        self._given_at = self._clock()
