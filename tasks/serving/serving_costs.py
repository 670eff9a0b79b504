"""What serving takes: each row's share of the device's seconds, and the curves that a worker learns from its own steps.

A prefill's seconds are divided by the tokens that it computes for each row. The seconds between two steps are divided
evenly, because each row gains a token. So the shares add up to the time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

from inference.local.cost_counters import StepSums
from inference.remote.stream_figures import StepSample
from learning.step_costs import StepCosts, StepWindow
from scheduling.costs import LearnedCurves, ServingCurves

# Between two fits, of some milliseconds each. Half of it is the mean age of what the planner plans with. Not tuned.
FIT_EVERY_S = 3.0
COUNTED = tuple(field.name for field in fields(StepSums) if field.name != "began_at")


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


class LearnedCosts:
    """The curves in service, refitted every FIT_EVERY_S from the windows that `take` gives; one thread owns it."""

    def __init__(self, take: Callable[[float], Iterable[StepWindow]], prior: ServingCurves | None = None) -> None:
        """`take` returns the windows that ended since it was last called, given the present instant."""
        self._take, self._costs = take, StepCosts(prior)
        self._fit_at = 0.0

    def curves(self, now: float) -> LearnedCurves | None:
        """Returns the curves in service; None while nothing better than the profile is known."""
        if now >= self._fit_at:
            self._fit_at = now + FIT_EVERY_S
            self._costs.add(self._take(now))
            self._costs.refit()
        return self._costs.in_service


class UnseenSamples:
    """Turns the samples of a server's iterations into windows, each of them once."""

    def __init__(self) -> None:
        self._last: StepSample | None = None

    def windows(self, samples: Iterable[StepSample], now: float) -> list[StepWindow]:
        """Those that are newer than the ones of the last call; samples are in the order of time."""
        unseen: list[StepSample] = []
        for sample in samples:
            unseen = [] if sample is self._last else [*unseen, sample]
        self._last = unseen[-1] if unseen else self._last
        return [window_of_sample(sample, now) for sample in unseen]


def window_of_sums(sums: StepSums, at: float) -> StepWindow:
    """A window of our own engine's steps."""
    return StepWindow(at=at, **{name: getattr(sums, name) for name in COUNTED})


def window_of_sample(sample: StepSample, at: float) -> StepWindow:
    """A server's window: each row reads its own tokens, and a prefill beside the iterations has no price of its own."""
    row_steps = sample.steps * sample.rows
    return StepWindow(
        sample.seconds,
        at,
        prefilled_tokens=sample.prefilled,
        row_reads=row_steps * sample.cached,
        row_steps=row_steps,
        steps=sample.steps,
    )
