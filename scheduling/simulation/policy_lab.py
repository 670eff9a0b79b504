"""Simulates the requests that a service has served under several policies, to compare what each would have reached.

Arrivals, predictions and lengths are the real ones; costs are what the workers have learned of their engines' steps.
Other costs (messages, transactions, other work on the machine) are calibrated: see `Overheads`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from scheduling.rank_correlation import RankCorrelation
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

# Under continuous batching the policy decides at multiples of this, which is a planner's step while every worker can be
# joined (`tasks/planning/planner_loop.py:JOINING_INTERVAL_S`).
TICK_S = 0.06
ROUNDS = 5  # rounds of the calibration: service times change batch sizes, which change service times; not tuned
# The largest slowdown that calibration may find; any value above that of a working service works.
MOST_SLOWDOWN = 20.0

FEW = 50  # with fewer requests than this hardly any request waits, and all policies look alike; not tuned
# An answer counts as good if it comes within this many times the seconds that its request takes alone.
GOOD_RATIO = 5.0
QUANTIZED = "vsq"  # `vs` with a quantized engine, whose costs are known only while such an engine serves

GoesOn = Callable[[], bool]


class AnswerTimes(NamedTuple):
    """An answered request: its instants in seconds, its answer's tokens, and the seconds that it would take alone."""

    arrived_at: float
    started_at: float
    finished_at: float
    tokens: int
    alone_s: float


@dataclass(frozen=True, slots=True)
class ServedWork:
    """The work of a service in a window of time, as a simulation needs it.

    `counted` has the requests whose times are reported, by id in order of arrival; all others waited or ran already
    when the window began.
    """

    arrivals: Sequence[Arrival]
    counted: Mapping[str, AnswerTimes]
    fleet: Sequence[Instance]
    costs: EngineCosts  # the costs of workers that have none of their own
    rank_correlation: RankCorrelation  # what the service's recent answers say about predictions and prompts
    weights: Mapping[str, float]  # the tenants' weights


@dataclass(frozen=True, slots=True)
class Overheads:
    """Service time as a multiple of the engines' steps, and the least seconds from arrival to service."""

    slowdown: float = 1.0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LabFigures:
    """The results of a policy: answers a second from the first arrival to the last answer, and response times.

    `unanswered` requests were not served before the simulation had to end, or fit no worker. `goodput` is the share of
    answers within GOOD_RATIO times their requests' time alone. `waited_s` is the mean time until service; `short_s` and
    `long_s` are mean response times of the shorter and the longer half of answers.
    """

    answered: int
    unanswered: int
    requests_per_s: float
    mean_s: float
    p50_s: float
    p99_s: float
    goodput: float
    waited_s: float = 0.0
    short_s: float = 0.0
    long_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """The policy with the least mean response time for some work, its relative gain over the one in force, and why.

    `error` is the relative error of the simulated mean response time of the policy in force.
    """

    best: str
    gain: float
    why: str
    error: float


def policies_to_play(in_force: str) -> list[str]:
    """Return the names of the policies that can be simulated while this one is in force."""
    return [name for name in POLICIES if name != QUANTIZED or name == in_force]


def play(policy: str, work: ServedWork, settings: PolicySettings, overheads: Overheads, goes_on: GoesOn) -> LabFigures:
    """Simulate the work under this policy while `goes_on()` is true; raise UnknownPolicy for an unknown name."""
    answers = _simulated(policy, work, settings, overheads, goes_on).answers
    times = (
        AnswerTimes(one.arrived_at - overheads.delay_s, one.started_at, one.finished_at, one.generated, real.alone_s)
        for request_id, real in work.counted.items()
        if (one := answers.get(request_id)) is not None
    )
    return figures_of(times, len(work.counted))


def advise(in_force: str, measured: LabFigures, played: Mapping[str, LabFigures]) -> Advice:
    """Compare the policy in force with all played ones; the best is the fastest that answered as many requests."""
    now = played[in_force]
    best = min(
        (name for name in played if played[name].answered >= now.answered),
        key=lambda name: (played[name].mean_s, name != in_force),
    )
    gain = 1 - played[best].mean_s / now.mean_s if now.mean_s else 0.0
    error = abs(now.mean_s / measured.mean_s - 1) if measured.mean_s else 0.0
    return Advice(best, gain, _why_sooner(now, played[best]), error)


def _why_sooner(now: LabFigures, best: LabFigures) -> str:
    if now.waited_s - best.waited_s < (now.mean_s - best.mean_s) / 2:
        return "answers were held up by others in their batches"
    if now.short_s - best.short_s > 2 * (now.long_s - best.long_s):
        return "short requests waited behind long ones"
    return "requests waited though workers had room"


def calibrate(policy: str, work: ServedWork, settings: PolicySettings, goes_on: GoesOn) -> Overheads:
    """Fit overheads with which the policy in force reaches its measured median waiting and service times.

    Means, percentiles and throughput are not fitted, so they show how good the simulation is.
    """
    waited_s, service_s = _medians(
        (max(0.0, one.started_at - one.arrived_at), max(0.0, one.finished_at - one.started_at))
        for one in work.counted.values()
    )
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


def figures_of(answered: Iterable[AnswerTimes], requests: int) -> LabFigures:
    """Return the figures of `requests` requests, of which `answered` have an answer."""
    times = np.array(list(answered), dtype=np.float64).reshape(-1, 5)
    if len(times) == 0:
        return LabFigures(0, requests, 0.0, 0.0, 0.0, 0.0, 0.0)
    arrived_at, started_at, finished_at, tokens, alone_s = times.T
    response_s = finished_at - arrived_at
    p50, p99 = np.percentile(response_s, (50, 99)).tolist()
    by_length = response_s[np.argsort(tokens, kind="stable")]
    return LabFigures(
        len(times),
        requests - len(times),
        len(times) / float(finished_at.max() - arrived_at.min()),
        float(response_s.mean()),
        p50,
        p99,
        float(np.mean(response_s <= GOOD_RATIO * alone_s)),
        waited_s=float((started_at - arrived_at).mean()),
        short_s=float(by_length[: (len(times) + 1) // 2].mean()),
        long_s=float(by_length[len(times) // 2 :].mean()),
    )


def _simulated(policy: str, work: ServedWork, settings: PolicySettings, overheads: Overheads, goes_on: GoesOn) -> Trace:
    played = make_policy(policy, settings)
    played.set_rank_correlation(work.rank_correlation)
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
