"""Costs of serving: each row's share of the device's seconds, and the curves that a worker learns from its steps.

A prefill's seconds are divided among its rows in proportion to the tokens that it computes for each. The seconds
between two steps are divided evenly, because each row gains a token, and further tokens from right guesses cost
little. Rows whose prompts are computed in these steps get an even share, too. So the shares add up to the elapsed time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

from inference.local.cost_counters import StepSums
from inference.remote.stream_figures import StepSample
from learning.step_costs import StepCosts, StepWindow
from scheduling.costs import LearnedCurves, ServingCurves

# Seconds between two fits of some milliseconds each. The planner's curves are on average half as old. Not tuned.
FIT_EVERY_S = 3.0
COUNTED = tuple(field.name for field in fields(StepSums) if field.name != "began_at")


class DeviceSeconds:
    """The running rows' shares of the device; instants are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._until = 0.0  # time up to here is divided
        self._each_s = 0.0  # seconds of a row that ran from the beginning
        self._rows: dict[str, float] = {}  # each row's prefill share minus the decode seconds before it joined

    def advance(self, now: float) -> None:
        """Divide the time since the last call evenly among the rows."""
        if self._rows:
            self._each_s += (now - self._until) / len(self._rows)
        self._until = now

    def join(self, prefill_tokens: Mapping[str, int], now: float) -> None:
        """Add rows; the time since the last call was their prefill, divided by their tokens."""
        seconds, tokens = now - self._until, sum(prefill_tokens.values())
        for row, of_row in prefill_tokens.items():
            self._rows[row] = seconds * of_row / tokens - self._each_s
        self._until = now

    def leave(self, row: str) -> float:
        """Remove a row and return its seconds; 0 if it was never added."""
        return self._rows.pop(row) + self._each_s if row in self._rows else 0.0


def by_tokens(seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
    """Divide the seconds of a run-to-completion batch by the tokens computed for each of its rows."""
    total = sum(tokens.values())
    return {row: seconds * of_row / total for row, of_row in tokens.items()}


class LearnedCosts:
    """The curves in service, refitted every FIT_EVERY_S from the windows that `take` gives; one thread owns it."""

    def __init__(self, take: Callable[[float], Iterable[StepWindow]], prior: ServingCurves | None = None) -> None:
        """`take` returns the windows that ended since it was last called, given the present instant."""
        self._take, self._costs = take, StepCosts(prior)
        self._fit_at = 0.0

    def curves(self, now: float) -> LearnedCurves | None:
        """Return the curves in service, or None until some are better than the profile."""
        if now >= self._fit_at:
            self._fit_at = now + FIT_EVERY_S
            self._costs.add(self._take(now))
            self._costs.refit()
        return self._costs.in_service


class UnseenSamples:
    """Turns each sample of a server's iterations into one window, even if later calls contain it again."""

    def __init__(self) -> None:
        self._last: StepSample | None = None

    def windows(self, samples: Iterable[StepSample], now: float) -> list[StepWindow]:
        """Return windows of the samples since the last call; samples are in the order of time."""
        unseen: list[StepSample] = []
        for sample in samples:
            unseen = [] if sample is self._last else [*unseen, sample]
        self._last = unseen[-1] if unseen else self._last
        return [window_of_sample(sample, now) for sample in unseen]


def window_of_sums(sums: StepSums, at: float) -> StepWindow:
    """Return a window of our own engine's steps."""
    return StepWindow(at=at, **{name: getattr(sums, name) for name in COUNTED})


def window_of_sample(sample: StepSample, at: float) -> StepWindow:
    """Return a server's window: rows read only their own tokens, and prefills beside iterations have no fixed cost."""
    row_steps = sample.steps * sample.rows
    return StepWindow(
        sample.seconds,
        at,
        prefilled_tokens=sample.prefilled,
        row_reads=row_steps * sample.cached,
        row_steps=row_steps,
        steps=sample.steps,
    )
