"""The order of a model's waiting requests as a value, from which the response time of a request that comes now follows.

Work is measured in seconds of the whole fleet, by the learned costs. A request has a key, and the smallest key is
served first: the arrival, less the worth of its level, and under `fusion` plus `scale_s` times the logarithm of the
delay that it causes. A new request waits until the work before its own key is served at the measured pace. That work
grows by requests that become due and by later arrivals whose keys are smaller still, until the new request is due
itself (see `scheduling.policies.fusion.priority_key`). Policies without such a key count as first come, first served:
the errors of earlier forecasts correct them.
"""

import math
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

import numpy as np

from scheduling.costs import Floats
from scheduling.request import PRIORITY_S

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a group's instants; so 16 groups make 64 stretches between quantiles
LATEST = 3.0  # the ratio of due requests, 2, and as much again as everything that waits for those that are due before
SHORTEST_S = 1e-9  # keys take a logarithm, and stretches are divided by their length, so neither may be 0
ROUNDS = 40  # the wait converges from below; each round adds what came in the round before


class Group(NamedTuple):
    """Waiting requests that cause about the same delay: its logarithm, their work, and quantiles at LEVELS.

    These are the instants of their arrivals, less the worth of their levels, and of when they become due.
    """

    log_delay: float
    work_s: float
    arrived_s: tuple[float, ...]
    due_s: tuple[float, ...]


class Coming(NamedTuple):
    """Arriving requests that cause about the same delay: its logarithm, and their work a second."""

    log_delay: float
    work_s: float


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """The waiting work of one model, what serves it, and what comes meanwhile.

    Durations are seconds; instants are seconds from the instant at which the order was made.
    """

    work_s: tuple[float, ...]  # the seconds of the fleet that a unit of each work feature takes
    token_s: float  # seconds of an iteration
    pace: float  # seconds of work that are served a second while something waits
    starts_in_s: float = 0.0  # seconds until a worker takes new work, if batches run to completion
    waiting: tuple[Group, ...] = ()
    coming: tuple[Coming, ...] = ()
    delay_s: tuple[float, ...] = ()  # the delay for a unit of each delay feature; empty: keys are arrivals
    due_ratio: float = 1.0  # with delays, a request is due after this many times what waits at its arrival
    overtaking: float = 1.0  # `scale_s` as a multiple of the time in which all waiting work is served

    def response_s(self, length: int, tokens: float, level: int = 0, age_s: float = 0.0) -> float:
        """Return the expected seconds to the answer of a request that comes `age_s` after the instant of the order."""
        log_delay, due_s, alone_s = 0.0, math.inf, tokens * self.token_s
        if self.delay_s:
            features = (1.0, length, tokens, tokens**2 / 2, tokens * length)
            log_delay = math.log(max(SHORTEST_S, sum(map(mul, self.delay_s, features))))
            due_s = age_s + self.due_ratio * (sum(group.work_s for group in self.waiting) + alone_s)
        served_at = self._served_at(age_s - PRIORITY_S * level, log_delay, age_s, due_s)
        prefill_s = self.work_s[0] + length * self.work_s[1]
        return max(0.0, served_at - age_s) + prefill_s + alone_s

    def work_of(self, length: int, tokens: float) -> float:
        """Return the seconds of the whole fleet that a prompt of `length` tokens and an answer of `tokens` take."""
        return float(sum(map(mul, self.work_s, (1.0, length, tokens, tokens * (length + tokens / 2)))))

    def latest_s(self, seconds: float) -> float:
        """Return the upper bound of an interval around this response time.

        Whoever waits is due at the latest after twice the time in which everything that waits is served.
        """
        return LATEST * max(seconds, sum(group.work_s for group in self.waiting) / self.pace)

    def _served_at(self, arrived_s: float, log_delay: float, age_s: float, due_s: float) -> float:
        """Return when a request is served; `arrived_s` is its arrival less the worth of its level."""
        logs, works, *instants = (np.array([group[column] for group in self.waiting]) for column in range(4))
        arrivals, dues = (each.reshape(-1, len(LEVELS)) for each in instants)
        coming_logs, coming_s = (np.array([one[column] for one in self.coming]) for column in (0, 1))
        drain_s, grows_s = float(works.sum()), float(coming_s.sum()) - self.pace
        at = 0.0
        for _ in range(ROUNDS):
            until = min(at, due_s)
            # A request goes first if the logarithm of its delay makes up for its later arrival. The logarithm counts
            # by the work that waits, which grows or shrinks meanwhile.
            scale_s = max(SHORTEST_S, self.overtaking * (drain_s + grows_s * until)) if self.delay_s else 0.0
            earlier = _share_below(arrivals, arrived_s + scale_s * (log_delay - logs))
            due = _share_below(dues, np.full(len(dues), until))
            came_s = np.clip(arrived_s + scale_s * (log_delay - coming_logs), 0.0, until)
            before_s = float(works @ (earlier + due - earlier * due) + coming_s @ came_s)
            at, last = max(at, before_s / self.pace), at
            if at - last <= 0.001 * at:
                break
        return max(self.starts_in_s, at)


def _share_below(quantiles: Floats, limits: Floats) -> Floats:
    """Return the share of each group below its limit, by the group's quantiles at LEVELS, (groups, levels)."""
    steps = np.maximum(np.diff(quantiles), SHORTEST_S)
    return np.asarray(np.clip((limits[:, None] - quantiles[:, :-1]) / steps, 0.0, 1.0).mean(axis=1), np.float64)
