"""Divides a worker's seconds among the rows that it serves, so that the shares add up to the time.

A prefill's seconds are divided by the tokens that it computes for each row. The seconds between two steps are divided
evenly, because each row gains a token.
"""

from collections.abc import Mapping


class DeviceSeconds:
    """The shares of the rows that run; all instants are of one monotonic clock, seconds."""

    def __init__(self) -> None:
        self._until = 0.0  # what came before is divided
        self._each_s = 0.0  # what a row would have got that was there from the beginning
        self._rows: dict[str, float] = {}  # a row's own part, less what it was not there for

    def advance(self, now: float) -> None:
        """Divide the time since the last call evenly among the rows."""
        if self._rows:
            self._each_s += (now - self._until) / len(self._rows)
        self._until = now

    def join(self, prefill_tokens: Mapping[str, int], now: float) -> None:
        """These rows have joined; the time since the last call was their prefill, of so many tokens each."""
        seconds, tokens = now - self._until, sum(prefill_tokens.values())
        for row, of_row in prefill_tokens.items():
            self._rows[row] = seconds * of_row / tokens - self._each_s
        self._until = now

    def leave(self, row: str) -> float:
        """The seconds of a row that is there no more; 0 if it never was."""
        return self._rows.pop(row) + self._each_s if row in self._rows else 0.0


def by_tokens(seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
    """The seconds of a batch that ran to completion, divided by the tokens computed for each of its rows."""
    total = sum(tokens.values())
    return {row: seconds * of_row / total for row, of_row in tokens.items()}
