"""The order of a model's waiting requests as a value, from which the response time of a request that comes now follows.

Work is measured in seconds of the whole fleet, by the learned costs. A request has a key, and the smallest key is
served first: the arrival, less the worth of its level, and under `fusion` plus `scale_s` times the logarithm of the
delay that it causes. A new request waits until the work before its own key is served at the measured pace. That work
grows by requests that become due and by later arrivals whose keys are smaller still, until the new request is due
itself (see `scheduling.policies.fusion.priority_key`). Policies without such a key count as first come, first served:
the errors of earlier forecasts correct them.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.forecast.forecast_inputs import RecentArrivals
from scheduling.policies.fusion.delay_cost import (
    DelayedRequests,
    delay_coefficients,
    delay_features,
    seconds_per_feature,
    upper_edges,
    work_by_length,
    work_features,
)
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.priority_key import MAX_FCFS_RATIO, MIN_SCALE_S
from scheduling.policy import Worker
from scheduling.request import PRIORITY_S, Request
from scheduling.sharing.model_queue import WaitsBehind

GROUPS = 16  # the most groups of waiting requests, and of arriving ones; not tuned
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a group's instants; so 16 groups make 64 stretches between quantiles
MOST_JOINING = 0.5  # prefills of several rows share their fixed time, so that they take no more than this share
LATEST = 3.0  # MAX_FCFS_RATIO, and as much again as everything that waits for those who became due before
POINTS = len(LEVELS)
NEVER_S = 1e9  # 31 years
# A longer queue is represented by this many of its requests, evenly spaced by arrival: they take a millisecond or two.
SAMPLED = 1024
# The pace is a moving average over these seconds in which something waited. It must span several batches; not tuned.
PACE_S = 60.0
LONGEST_GAP_S = 5.0  # the planner was paused if its decisions are further apart; nothing is learned of such a gap
PRIOR_S = 2.0  # the costs count as right for this many seconds of the average
SHORTEST_S = 1e-9  # keys take a logarithm, and works are divided by the pace, so neither may be 0
ROUNDS = 40  # the wait converges from below; each round adds what came in the round before


class ServingPace:
    """The work that is assigned a second while requests wait, compared with the work that the costs promise."""

    def __init__(self) -> None:
        self._at = self._busy_s = 0.0
        self._served = np.zeros(4)  # work features
        self._left = 0  # the requests that waited after the last decision

    def decided(self, assigned: Iterable[Request], left: int, now: float) -> None:
        """Count the requests of a decision at `now`, after which `left` requests wait."""
        if self._left and now - self._at <= LONGEST_GAP_S:
            faded = math.exp((self._at - now) / PACE_S)
            self._busy_s = faded * self._busy_s + now - self._at
            self._served = faded * self._served + sum((np.array(work_features(one)) for one in assigned), np.zeros(4))
        self._at, self._left = now, left

    def pace(self, work_s: Sequence[float] | Floats) -> float:
        """Return the seconds of work that are served a second, with these seconds for each feature."""
        return (PRIOR_S + float(self._served @ np.asarray(work_s))) / (PRIOR_S + self._busy_s)


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

    def response_s(self, length: int, tokens: float, level: int = 0, age_s: float = 0.0) -> float:
        """Return the expected seconds to the answer of a request that comes `age_s` after the instant of the order."""
        log_delay, due_s, alone_s = 0.0, math.inf, tokens * self.token_s
        if self.delay_s:
            log_delay = _log_delay(self.delay_s, np.array([float(length)]), np.array([float(tokens)])).item()
            due_s = age_s + MAX_FCFS_RATIO * (sum(group.work_s for group in self.waiting) + alone_s)
        served_at = self._served_at(age_s - PRIORITY_S * level, log_delay, age_s, due_s)
        prefill_s = self.work_s[0] + length * self.work_s[1]
        return max(0.0, served_at - age_s) + prefill_s + alone_s

    def latest_s(self, seconds: float) -> float:
        """Return the upper bound of an interval around this response time.

        Whoever waits is due at the latest after twice the time in which everything that waits is served.
        """
        return LATEST * max(seconds, sum(group.work_s for group in self.waiting) / self.pace)

    def _served_at(self, arrived_s: float, log_delay: float, age_s: float, due_s: float) -> float:
        """Return when a request is served; `arrived_s` is its arrival less the worth of its level."""
        logs, works = (np.array([group[column] for group in self.waiting]) for column in (0, 1))
        arrivals, dues = (np.array([group[column] for group in self.waiting]).reshape(-1, POINTS) for column in (2, 3))
        coming_logs, coming_s = (np.array([one[column] for one in self.coming]) for column in (0, 1))
        drain_s, grows_s = float(works.sum()), float(coming_s.sum()) - self.pace
        at = 0.0
        for _ in range(ROUNDS):
            until = min(at, due_s)
            # A request goes first if the logarithm of its delay makes up for its later arrival. The logarithm counts
            # by the work that waits, which grows or shrinks meanwhile.
            scale_s = max(MIN_SCALE_S, drain_s + grows_s * until) if self.delay_s else 0.0
            earlier = _share_below(arrivals, arrived_s + scale_s * (log_delay - logs))
            due = _share_below(dues, np.full(len(dues), until))
            came_s = np.clip(arrived_s + scale_s * (log_delay - coming_logs), 0.0, until)
            before_s = float(works @ (earlier + due - earlier * due) + coming_s @ came_s)
            at, last = max(at, before_s / self.pace), at
            if at - last <= 0.001 * at:
                break
        return max(self.starts_in_s, at)


def _share_below(quantiles: Floats, limits: Floats) -> Floats:
    """Return the share of each group below its limit, by the group's quantiles at LEVELS, (groups, POINTS)."""
    steps = np.maximum(np.diff(quantiles), SHORTEST_S)
    return np.asarray(np.clip((limits[:, None] - quantiles[:, :-1]) / steps, 0.0, 1.0).mean(axis=1), np.float64)


def queue_order(
    waiting: Collection[WaitsBehind],
    arrivals: RecentArrivals,
    pace: ServingPace,
    workers: Sequence[Worker],
    now: float,
    *,
    by_delay: bool,
    joins: bool,
) -> QueueOrder:
    """Return the order of the waiting requests; `by_delay` says that keys count the delay.

    There must be at least one worker.
    """
    recent, arrivals_per_s = arrivals.recent, arrivals.rate(now)
    fleet = FleetArrays(workers)
    work_s = seconds_per_feature(fleet) / len(fleet)
    every = max(1, len(waiting) // SAMPLED)
    sampled = list(islice(waiting, 0, None, every))
    requests = [one.request for one in sampled]
    features, of_recent = _features(requests), _features(recent)
    each_s, step_s = every * features @ work_s, float(fleet.step_s().mean())
    arrived_s = np.array([one.arrived_at for one in requests]) - now
    dues, logs, recent_logs, delays = (
        np.full(len(requests), NEVER_S),
        np.zeros(len(requests)),
        np.zeros(len(recent)),
        (),
    )
    if by_delay:
        edges = upper_edges(fleet, work_by_length(features, each_s * len(fleet)))
        delayed = DelayedRequests((len(waiting) + int(fleet.size.sum())) / len(fleet), edges)
        delays = tuple(delay_coefficients(fleet, delayed, np.arange(len(fleet))).mean(axis=0).tolist())
        logs, recent_logs = (_log_delay(delays, some[:, 1], some[:, 2]) for some in (features, of_recent))
        cached = features[:, 3].sum() / max(1.0, features[:, 2].sum())
        ahead = np.array([(w.requests, w.prefill, w.remaining, w.remaining * cached) for _, w in sampled])
        dues = arrived_s + MAX_FCFS_RATIO * (ahead.reshape(-1, 4) @ work_s + features[:, 2] * step_s)
    by_level_s = arrived_s - PRIORITY_S * np.array([one.level for one in requests])
    coming_s = arrivals_per_s / max(1, len(recent)) * of_recent @ work_s
    return QueueOrder(
        work_s=tuple(work_s.tolist()),
        token_s=step_s / (1 - _joining_share(fleet, of_recent, arrivals_per_s)),
        pace=pace.pace(work_s),
        starts_in_s=0.0 if joins else min(worker.busy_s for worker in workers),
        waiting=tuple(
            Group(
                float(logs[part].mean()),
                float(each_s[part].sum()),
                tuple(np.quantile(by_level_s[part], LEVELS).round(3).tolist()),
                tuple(np.quantile(dues[part], LEVELS).round(3).tolist()),
            )
            for part in _groups(logs)
        ),
        coming=tuple(
            Coming(float(recent_logs[part].mean()), float(coming_s[part].sum())) for part in _groups(recent_logs)
        ),
        delay_s=delays,
    )


def _joining_share(fleet: FleetArrays, coming: Floats, arrivals_per_s: float) -> float:
    """Return the share of the workers' time that prefills take from running rows, at most half."""
    if not len(coming):
        return 0.0
    length = coming[:, 1].mean()
    prefill_s = fleet.p4 + fleet.p2 + (fleet.p3 + fleet.p1) * length
    return min(MOST_JOINING, arrivals_per_s * float(prefill_s.mean()) / len(fleet))


def _features(requests: Sequence[Request]) -> Floats:
    return np.array([work_features(one) for one in requests]).reshape(-1, 4)


def _log_delay(delay_s: Sequence[float], prefill: Floats, remaining: Floats) -> Floats:
    delays = np.array(delay_s) @ delay_features(prefill, remaining)
    return np.asarray(np.log(np.maximum(delays, SHORTEST_S)), np.float64)


def _groups(logs: Floats) -> Iterator[Ints]:
    """Yield the positions of at most GROUPS groups of neighbouring values, about as many in each."""
    parts = np.array_split(np.argsort(logs, kind="stable"), GROUPS)
    return (part for part in parts if len(part))
