"""Costs of serving: each row's share of the device's seconds, and the curves that a worker learns from its steps.

A prefill's seconds are divided among its rows in proportion to the tokens that it computes for each row. The seconds
between two steps are divided evenly, because each row gains a token, and further tokens from right guesses cost
little. Rows whose prompts are computed in these steps get an even share, too. So all shares add up to the elapsed time.
"""

from collections.abc import Callable, Iterable, Mapping

from learning.step_costs import StepCosts
from scheduling.costs import LearnedCurves, ServingCurves, StepWindow

# Curves are fitted this often, which takes some milliseconds. The planner's are on average half as old. Not tuned.
FIT_EVERY_S = 3.0


class DeviceSeconds:
    """The running rows' shares of the device; instants are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._until = 0.0  # the instant up to which time has been divided
        self._each_s = 0.0  # decode seconds of a row that has run from the beginning
        self._rows: dict[str, float] = {}  # each row's prefill seconds minus `_each_s` when it joined

    def advance(self, now: float) -> None:
        """Divide the time since the last call evenly among the rows."""
        if self._rows:
            self._each_s += (now - self._until) / len(self._rows)
        self._until = now

    def join(self, prefill_tokens: Mapping[str, int], now: float) -> None:
        """Adds rows; divides the time since the last call, which was their prefill, in proportion to their tokens."""
        seconds, tokens = now - self._until, sum(prefill_tokens.values())
        for row, of_row in prefill_tokens.items():
            self._rows[row] = seconds * of_row / tokens - self._each_s
        self._until = now

    def leave(self, row: str) -> float:
        """Remove a row and return its seconds; 0 if it was never added."""
        return self._rows.pop(row) + self._each_s if row in self._rows else 0.0


def by_tokens(seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
    """Divides the seconds of a run-to-completion batch in proportion to the tokens computed for each of its rows."""
    total = sum(tokens.values())
    return {row: seconds * of_row / total for row, of_row in tokens.items()}


class LearnedCosts:
    """The curves in service, refitted every FIT_EVERY_S from the windows that `take` gives; one thread owns it."""

    def __init__(self, take: Callable[[], Iterable[StepWindow]], prior: ServingCurves | None = None) -> None:
        """`take` returns the windows that ended since it was last called."""
        self._take, self._costs = take, StepCosts(prior)
        self._fit_at = 0.0

    def curves(self, now: float) -> LearnedCurves | None:
        """Returns the curves in service, or None until the learned curves are better than the profile."""
        if now >= self._fit_at:
            self._fit_at = now + FIT_EVERY_S
            self._costs.add(self._take())
            self._costs.refit()
        return self._costs.in_service
