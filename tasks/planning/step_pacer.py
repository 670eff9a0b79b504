"""Keeps the planner's steps apart, so that kicks which come close together are answered by one step."""

from collections.abc import Callable
from time import monotonic, sleep


class StepPacer:
    """Steps begin at least `interval_s` seconds after each other, also when a step fails."""

    def __init__(
        self,
        interval_s: float,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self._interval_s, self._clock, self._sleep = interval_s, clock, sleep
        self._began_at = self._next_at = 0.0

    def wait(self) -> None:
        """Return when the next step may begin."""
        now = self._clock()
        if now < self._next_at:
            self._sleep(self._next_at - now)
        self._began_at = max(now, self._next_at)
        self._next_at = self._began_at + self._interval_s

    def lengthen(self, interval_s: float) -> None:
        """Delay only the next step until `interval_s` after the start of the last one."""
        self._next_at = max(self._next_at, self._began_at + interval_s)
