"""The costs that a worker learns from its own steps, fitted now and then and handed to the planner with a heartbeat."""

from collections.abc import Callable, Iterable

from inference.remote.stream_figures import StepSample
from learning.step_costs import StepCosts, StepWindow
from scheduling.costs import LearnedCurves, ServingCurves
from tasks.serving.costs.step_windows import window_of_sample

# Between two fits, of some milliseconds each. Half of it is the mean age of what the planner plans with. Not tuned.
FIT_EVERY_S = 3.0


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
