"""The typical serving time of recent batches, which ETAs of an idle service use."""

from collections.abc import Iterable

from sqlalchemy import Connection

from models.planning import live_fleet

# Weight of the newest batch in the moving average: about the last ten batches count. Not tuned.
NEWEST_WEIGHT = 0.1


class TypicalBatch:
    """The moving average of finished batches' serving times, read from the database on demand."""

    def __init__(self) -> None:
        self._ended: list[int] = []  # batches that ended since the last read
        self._mean_s = 0.0

    def note(self, batch_ids: Iterable[int]) -> None:
        """Record that these batches have ended."""
        self._ended += batch_ids

    def serving_s(self, connection: Connection) -> float:
        """Return the average in seconds; 0 before the first batch finished."""
        endings = live_fleet.batch_endings(connection, self._ended) if self._ended else {}
        self._ended.clear()
        for ending in endings.values():
            if ending.serving_s is not None:
                weight = NEWEST_WEIGHT if self._mean_s else 1.0
                self._mean_s += weight * (ending.serving_s - self._mean_s)
        return self._mean_s
