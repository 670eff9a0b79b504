"""Simulates under several policies the requests that a service has served, to compare what each would have reached.

Arrivals, predictions and lengths are the real ones; costs are those that the workers learned of their engines' steps.
Other costs (messages, transactions, other work on the machine) are calibrated: see `Overheads`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

# Where rows join, the policy is asked at multiples of this: a planner's step while every worker can be joined
# (`tasks/planning/planner_loop.py:JOINING_INTERVAL_S`).
TICK_S = 0.06
ROUNDS = 5  # rounds of the calibration: service times change batch sizes, which change service times. Not tuned
# most service time as a multiple of the engine's steps; any value above that of a working service works
MOST_SLOWDOWN = 20.0

GoesOn = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class ServedTimes:
    """Measured seconds of a request's waiting and of its service."""

    waited_s: float
    service_s: float


@dataclass(frozen=True, slots=True)
class ServedWork:
    """What a service did in a window of time, as a simulation needs it.

    `counted` are the requests whose times are reported, in order of arrival; the others waited or ran already when the
    window began.
    """

    arrivals: Sequence[Arrival]
    counted: Sequence[str]
    times: Mapping[str, ServedTimes]
    fleet: Sequence[Instance]
    costs: EngineCosts  # costs of workers that have none of their own
    tau: float | None  # Kendall's tau of its predictions
    weights: Mapping[str, float]  # tenants' weights


@dataclass(frozen=True, slots=True)
class Overheads:
    """Service time as a multiple of the engines' steps, and the least seconds from arrival to service."""

    slowdown: float = 1.0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LabFigures:
    """The results of a policy: answers a second from the first arrival to the last answer, and response times.

    `unanswered` were not served before the simulation had to end, or fit no worker.
    """

    answered: int
    unanswered: int
    requests_per_s: float
    mean_s: float
    p50_s: float
    p99_s: float


def play(policy: str, work: ServedWork, settings: PolicySettings, overheads: Overheads, goes_on: GoesOn) -> LabFigures:
    """Simulate the work under this policy while `goes_on()` is true; raise UnknownPolicy for an unknown name."""
    answers = _simulated(policy, work, settings, overheads, goes_on).answers
    counted = [answers[one] for one in work.counted if one in answers]
    times = ((answer.arrived_at - overheads.delay_s, answer.finished_at) for answer in counted)
    return figures_of(times, len(work.counted))


def calibrate(policy: str, work: ServedWork, settings: PolicySettings, goes_on: GoesOn) -> Overheads:
    """Fit overheads so that the policy in force reaches its measured median waiting and service times.

    Means, percentiles and throughput are not fitted, so they show how good the simulation is.
    """
    measured = [work.times[one] for one in work.counted]
    waited_s, service_s = _medians((one.waited_s, one.service_s) for one in measured)
    overheads = Overheads()
    for _ in range(ROUNDS):
        answers = _simulated(policy, work, settings, overheads, goes_on).answers
        ended = [answers[one] for one in work.counted if one in answers]
        if not ended:
            break
        waits_s, serves_s = _medians(
            (one.started_at - one.arrived_at, one.finished_at - one.started_at) for one in ended
        )
        slowdown = overheads.slowdown * service_s / max(serves_s, 1e-6)
        overheads = Overheads(min(max(slowdown, 1.0), MOST_SLOWDOWN), max(0.0, waited_s - waits_s))
    return overheads


def figures_of(answered: Iterable[tuple[float, float]], requests: int) -> LabFigures:
    """Compute the figures of `requests` requests, whose answers are pairs (arrived at, finished at)."""
    times = np.array(list(answered), dtype=np.float64).reshape(-1, 2)
    if len(times) == 0:
        return LabFigures(0, requests, 0.0, 0.0, 0.0, 0.0)
    response_s = times[:, 1] - times[:, 0]
    p50, p99 = np.percentile(response_s, (50, 99)).tolist()
    span_s = float(times[:, 1].max() - times[:, 0].min())
    return LabFigures(len(times), requests - len(times), len(times) / span_s, float(response_s.mean()), p50, p99)


def _simulated(policy: str, work: ServedWork, settings: PolicySettings, overheads: Overheads, goes_on: GoesOn) -> Trace:
    played = make_policy(policy, settings)
    played.set_rank_correlation(work.tau)
    played.set_weights(work.weights)
    arrivals = [
        replace(one, request=replace(one.request, arrived_at=one.request.arrived_at + overheads.delay_s))
        for one in work.arrivals
    ]
    fleet = [replace(instance, speed=instance.speed / overheads.slowdown) for instance in work.fleet]
    tick_s = TICK_S if played.mode == "continuous" else 0.0
    return simulate(played, arrivals, fleet, work.costs, seed=0, tick_s=tick_s, goes_on=goes_on)


def _medians(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    first, second = np.median(np.array(list(pairs)), axis=0).tolist()
    return first, second
