"""Tries other numbers of CPU threads while an engine runs, and keeps the one with the shorter decoding steps.

A measurement at loading holds only until another process takes a core or gives it back. More threads than free cores
are ruinous, because each operation then waits for a thread without a core: a step of SmolLM2 takes 196 ms, not 21.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

import torch

PAIRS = 6  # a trial compares this many pairs of steps, one with each number of threads, by the median of their ratios
MOST_PAIRS = 24  # a trial ends undecided after this many pairs; only pairs of steps with the same rows count
RUINOUS = 3.0  # a step that takes this many times the usual ends a trial of more threads, or starts one of fewer
# Seconds between trials. A trial of more threads costs at most one ruinous step: beside a busy process, 0.2 s a minute.
SOONEST_S, LATEST_S = 2.0, 60.0
# The steps of smaller models are so short that waking another thread takes as long as the thread saves.
WORTH_A_TRIAL_S = 0.005
USUAL_STEPS = 16


class ThreadTrials:
    """Alternates between two numbers of threads from step to step, so that other processes slow both down alike."""

    def __init__(
        self, chosen: int, most: int, tolerated: float, set_threads: Callable[[int], None] = torch.set_num_threads
    ) -> None:
        """Keeps the fewest threads with which a step takes at most `tolerated` times as long as with twice as many."""
        self.chosen, self._most, self._tolerated, self._set_threads = chosen, most, tolerated, set_threads
        self._interval_s = SOONEST_S
        self._next_trial_at: float | None = None
        self._more_next = True
        self._other: int | None = None  # the number of threads on trial
        self._before: tuple[int, float] | None = None  # rows and seconds of the trial's step with the chosen number
        self._pairs = 0
        self._ratios: list[float] = []  # seconds with the other number / seconds with the chosen one
        self._usual: deque[float] = deque(maxlen=USUAL_STEPS)

    def count(self, rows: int, seconds: float, now: float) -> None:
        """Counts a decoding step that ended at `now`, and sets the number of threads of the next one."""
        if self._most == 1:
            return
        if self._other is not None:
            self._count_in_trial(self._other, rows, seconds, now)
        else:
            self._count_outside(seconds, now)

    def _count_outside(self, seconds: float, now: float) -> None:
        if self._next_trial_at is None:
            self._next_trial_at = now + self._interval_s
        full = len(self._usual) == USUAL_STEPS
        ruinous = self.chosen > 1 and full and seconds > RUINOUS * median(self._usual)
        self._usual.append(seconds)
        if ruinous:
            self._begin(self.chosen // 2)
        elif full and now >= self._next_trial_at and median(self._usual) >= WORTH_A_TRIAL_S:
            more = min(self._most, self.chosen * 2)
            fewer = max(1, self.chosen // 2)
            first, second = (more, fewer) if self._more_next else (fewer, more)
            self._more_next = not self._more_next
            self._begin(first if first != self.chosen else second)

    def _begin(self, other: int) -> None:
        self._other, self._before, self._pairs, self._ratios = other, None, 0, []

    def _count_in_trial(self, other: int, rows: int, seconds: float, now: float) -> None:
        if self._before is None:
            self._before = (rows, seconds)
            self._set_threads(other)
            return
        rows_before, seconds_before = self._before
        self._before = None
        self._pairs += 1
        self._set_threads(self.chosen)
        if rows == rows_before:
            self._ratios.append(seconds / seconds_before)
        if other > self.chosen and seconds > RUINOUS * seconds_before:
            self._end(self.chosen, now)
        elif len(self._ratios) >= PAIRS:
            ratio = median(self._ratios)
            better = ratio * self._tolerated <= 1 if other > self.chosen else ratio <= self._tolerated
            self._end(other if better else self.chosen, now)
        elif self._pairs == MOST_PAIRS:
            self._end(self.chosen, now)

    def _end(self, chosen: int, now: float) -> None:
        self._interval_s = SOONEST_S if chosen != self.chosen else min(LATEST_S, 2 * self._interval_s)
        self._next_trial_at = now + self._interval_s
        self.chosen, self._other = chosen, None
        self._usual.clear()
        self._set_threads(chosen)
