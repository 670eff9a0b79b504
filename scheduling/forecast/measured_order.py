"""Makes the order of a model's queue from its waiting requests, its workers, recent arrivals and the measured pace."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.forecast.expectations import spread_of
from scheduling.forecast.forecast import ExpectedAnswer
from scheduling.forecast.forecast_inputs import WINDOW_S, RecentArrivals
from scheduling.forecast.queue_order import FOREVER_S, LEVELS, SHORTEST_S, Coming, Group, QueueOrder
from scheduling.length_distributions import log_spread
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
from scheduling.policies.fusion.priority_key import Favour
from scheduling.policies.fusion.serving_pace import LONGEST_GAP_S, PRIOR_S, ServingPace
from scheduling.policy import RunningRow, Worker
from scheduling.request import PRIORITY_S, Request
from scheduling.sharing.model_queue import WaitsBehind

GROUPS = 16  # the most groups of waiting requests, and of arriving ones; not tuned
# A longer queue is represented by this many of its requests, evenly spaced by arrival: they take a millisecond or two.
SAMPLED = 1024
TOKEN_PACE_S = 20.0  # the seconds of a token are averaged over these: rows live shorter than queues; not tuned


class RowPace:
    """The seconds in which running rows gain a token, compared with those of an iteration by the costs."""

    def __init__(self) -> None:
        self._generated: Mapping[str, int] = {}  # the tokens of the rows at the last look, by request
        self._looked_at = 0.0
        self._gained_s = self._promised_s = 0.0

    def looked(self, batches: Iterable[tuple[Sequence[RunningRow], float]], now: float) -> None:
        """Compare the tokens that rows have gained since the last look with the seconds of their batch's iteration."""
        passed_s = max(0.0, now - self._looked_at)  # the database's clock may go back
        faded = math.exp(-passed_s / TOKEN_PACE_S)
        self._gained_s, self._promised_s = faded * self._gained_s, faded * self._promised_s
        generated: dict[str, int] = {}
        for rows, step_s in batches:
            for row in rows:
                generated[row.request.id] = row.generated
                if row.request.id in self._generated and 0 < passed_s <= LONGEST_GAP_S:
                    self._gained_s += passed_s
                    self._promised_s += (row.generated - self._generated[row.request.id]) * step_s
        self._generated, self._looked_at = generated, now

    @property
    def slowness(self) -> float:
        """Return the seconds in which a row gains a token over those of an iteration: others' prefills take time."""
        return (PRIOR_S + self._gained_s) / (PRIOR_S + self._promised_s)


def queue_order(
    waiting: Collection[WaitsBehind],
    arrivals: RecentArrivals,
    pace: ServingPace,
    workers: Sequence[Worker],
    now: float,
    *,
    slowness: float,
    favour: Favour | None,
    joins: bool,
) -> QueueOrder:
    """Return the order of the waiting requests; keys count the delay if there is a `favour`, that of `fusion`.

    There must be at least one worker. `slowness` is that of `RowPace`.
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
        np.full(len(requests), FOREVER_S),
        np.zeros(len(requests)),
        np.zeros(len(recent)),
        (),
    )
    if favour:
        edges = upper_edges(fleet, work_by_length(features, each_s * len(fleet)))
        delayed = DelayedRequests((len(waiting) + int(fleet.size.sum())) * fleet.speed_share(), edges)
        delays = tuple(delay_coefficients(fleet, delayed, np.arange(len(fleet))).mean(axis=0).tolist())
        logs, recent_logs = (_log_delay(delays, some[:, 1], some[:, 2]) for some in (features, of_recent))
        dues = arrived_s + favour.max_fcfs_ratio * _fcfs_s(sampled, features, work_s / pace.pace(work_s), step_s)
    by_level_s = arrived_s - PRIORITY_S * np.array([one.level for one in requests])
    coming_s = arrivals_per_s / max(1, len(recent)) * of_recent @ work_s
    return QueueOrder(
        work_s=tuple(work_s.tolist()),
        token_s=slowness * step_s,
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
        due_ratio=favour.max_fcfs_ratio if favour else 1.0,
        overtaking=favour.overtaking if favour else 1.0,
        lasts_s=max(WINDOW_S, pace.waited_s(now)),  # at least as long as the rate of arrivals was measured
    )


def expected_by_order(order: QueueOrder, waiting: Sequence[WaitsBehind], now: float) -> dict[str, ExpectedAnswer]:
    """Return the expected answer of each of these waiting requests by its own place in the order."""
    if not waiting:
        return {}
    requests = [one.request for one in waiting]
    features = _features(requests)
    arrived_s = np.array([one.arrived_at for one in requests]) - now
    log_delay, due_s = np.zeros(len(requests)), np.full(len(requests), FOREVER_S)
    if order.delay_s:
        log_delay = _log_delay(order.delay_s, features[:, 1], features[:, 2])
        work_s = np.array(order.work_s) / order.pace
        due_s = arrived_s + order.due_ratio * _fcfs_s(waiting, features, work_s, order.token_s)
    by_level_s = arrived_s - PRIORITY_S * np.array([one.level for one in requests])
    starts_s = order.served_at(by_level_s, log_delay, due_s)
    alone_s = order.alone_s(features[:, 1], features[:, 2])
    return {
        one.id: ExpectedAnswer("waiting", start_s, start_s + own_s, _spread(one, own_s / (start_s + own_s)))
        for one, start_s, own_s in zip(requests, starts_s.tolist(), alone_s.tolist(), strict=True)
    }


def _spread(request: Request, service_share: float) -> float:
    return spread_of(log_spread(request.remaining, request.remaining_upper), service_share)


def _fcfs_s(waiting: Sequence[WaitsBehind], features: Floats, work_s: Floats, token_s: float) -> Floats:
    """Return the response times of waiting requests with these work features under first come, first served.

    `work_s` has the seconds for a unit of each feature at the measured pace.
    """
    cached = features[:, 3].sum() / max(1.0, features[:, 2].sum())
    ahead = np.array([(w.requests, w.prefill, w.remaining, w.remaining * cached) for _, w in waiting]).reshape(-1, 4)
    return np.asarray(ahead @ work_s + features[:, 2] * token_s, np.float64)


def _features(requests: Sequence[Request]) -> Floats:
    return np.array([work_features(one) for one in requests]).reshape(-1, 4)


def _log_delay(delay_s: Sequence[float], prefill: Floats, remaining: Floats) -> Floats:
    delays = np.array(delay_s) @ delay_features(prefill, remaining)
    return np.asarray(np.log(np.maximum(delays, SHORTEST_S)), np.float64)


def _groups(logs: Floats) -> Iterator[Ints]:
    """Yield the positions of at most GROUPS groups of neighbouring values, about as many in each."""
    parts = np.array_split(np.argsort(logs, kind="stable"), GROUPS)
    return (part for part in parts if len(part))
