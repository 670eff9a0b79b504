"""The order of a model's waiting requests as a value, from which the response time of a request that comes now follows.

Work is measured in seconds of the whole fleet, by the learned costs. A request has a key, and the smallest key is
served first: the arrival, less the worth of its level, and under `fusion` plus `scale_s` times the logarithm of the
delay that it causes. A new request waits until the work before its own key is served at the measured pace. That work
grows by requests that become due and by later arrivals whose keys are smaller still, until the new request is due
itself (see `scheduling.policies.fusion.priority_key`). Nobody knows how long arrivals will go on: they are expected to
last as long as requests have been waiting without a break (Gott's rule). Policies without such a key count as first
come, first served: the errors of earlier forecasts correct them.
"""

import math
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple, TypeVar

import numpy as np

from scheduling.costs import Floats
from scheduling.request import PRIORITY_S

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a group's instants; so 16 groups make 64 stretches between quantiles
LATEST = 3.0  # the ratio of due requests, 2, and as much again as everything that waits for those that are due before
SHORTEST_S = 1e-9  # keys take a logarithm, and stretches are divided by their length, so neither may be 0
FOREVER_S = 1e9  # 31 years
ROUNDS = 40  # the wait converges from below; each round adds what came in the round before

Amount = TypeVar("Amount", float, Floats)


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
    lasts_s: float = FOREVER_S  # seconds for which arrivals are expected to go on

    def response_s(self, length: int, tokens: float, level: int = 0, age_s: float = 0.0) -> float:
        """Return the expected seconds to the answer of a request that comes `age_s` after the instant of the order."""
        return self.response_and_soonest_s(length, tokens, level, age_s)[0]

    def response_and_soonest_s(
        self, length: int, tokens: float, level: int = 0, age_s: float = 0.0
    ) -> tuple[float, float]:
        """Return `response_s`, and what it would be if no further request came."""
        log_delay, due_s, alone_s = 0.0, math.inf, tokens * self.token_s
        if self.delay_s:
            features = (1.0, length, tokens, tokens**2 / 2, tokens * length)
            log_delay = math.log(max(SHORTEST_S, sum(map(mul, self.delay_s, features))))
            due_s = age_s + self.due_ratio * (sum(group.work_s for group in self.waiting) / self.pace + alone_s)
        arrived, delay, due = (np.full(2, one) for one in (age_s - PRIORITY_S * level, log_delay, due_s))
        served_at = self.served_at(arrived, delay, due, lasts_s=np.array([self.lasts_s, 0.0]))
        response_s, soonest_s = np.maximum(0.0, served_at - age_s) + self.alone_s(length, tokens)
        return float(response_s), float(soonest_s)

    def alone_s(self, length: Amount, tokens: Amount) -> Amount:
        """Return the seconds from the beginning of a request's service to its answer, element by element."""
        return self.work_s[0] + length * self.work_s[1] + tokens * self.token_s

    def latest_s(self, seconds: float) -> float:
        """Return the upper bound of an interval around this response time.

        Whoever waits is due at the latest after twice the time in which everything that waits is served.
        """
        return LATEST * max(seconds, sum(group.work_s for group in self.waiting) / self.pace)

    def served_at(self, arrived_s: Floats, log_delay: Floats, due_s: Floats, lasts_s: Floats | None = None) -> Floats:
        """Return when each request is served, (requests,); `arrived_s` is its arrival less the worth of its level.

        Arrivals go on for `lasts_s` in place of those of the order, for each request.
        """
        lasts_s = np.full(len(arrived_s), self.lasts_s) if lasts_s is None else lasts_s
        logs, works, *instants = (np.array([group[column] for group in self.waiting]) for column in range(4))
        arrivals, dues = (each.reshape(-1, len(LEVELS)) for each in instants)
        coming_logs, coming_s = (np.array([one[column] for one in self.coming]) for column in (0, 1))
        drain_s, comes_s = float(works.sum()), float(coming_s.sum())
        at, rising = np.zeros(len(arrived_s)), np.arange(len(arrived_s))
        for _ in range(ROUNDS):
            last, arrived, delay = at[rising], arrived_s[rising, None], log_delay[rising, None]
            until = np.minimum(last, due_s[rising])
            arrives_until = np.minimum(until, lasts_s[rising])
            # A request goes first if the logarithm of its delay makes up for its later arrival. The logarithm counts
            # by the work that waits, which grows or shrinks meanwhile.
            left_s = drain_s + comes_s * arrives_until - self.pace * until
            scale_s = np.maximum(SHORTEST_S, (self.overtaking if self.delay_s else 0.0) * left_s / self.pace)[:, None]
            earlier = _share_below(arrivals, arrived + scale_s * (delay - logs))
            due = _share_below(dues, until[:, None])
            came_s = np.clip(arrived + scale_s * (delay - coming_logs), 0.0, arrives_until[:, None])
            before_s = (earlier + due - earlier * due) @ works + came_s @ coming_s
            at[rising] = np.maximum(last, before_s / self.pace)
            rising = rising[at[rising] - last > 0.001 * at[rising]]
            if not len(rising):
                break
        return np.maximum(self.starts_in_s, at)


def _share_below(quantiles: Floats, limits: Floats) -> Floats:
    """Return the share of each group below each request's limit, (requests, groups), by its quantiles at LEVELS.

    Quantiles are (groups, levels), limits (requests, groups) or (requests, 1).
    """
    steps = np.maximum(np.diff(quantiles), SHORTEST_S)
    shares = np.clip((limits[:, :, None] - quantiles[:, :-1]) / steps, 0.0, 1.0)
    return np.asarray(shares.mean(axis=2), np.float64)
