"""Which request goes first: the one that arrived earliest, once a logarithm of the delay that it causes is added.

    key = arrived_at - priority · PRIORITY_S + scale · ln(delay)

The smallest key goes first. With the time constant of the waiting time as its scale, the logarithm makes long waits
rarest when queues are long (γ-Boost), while short requests gain most of what shortest-first would give them. The scale
is the time in which the fleet would serve all that waits, so nothing is overtaken while nothing waits.

Nobody starves. A request is due once it has waited MAX_FCFS_RATIO times as long as first come, first served would have
kept it: behind all that waited when it came, then served alone. Requests that are due go first, the one that became due
earliest before the others.
"""

import math
from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.continuous_constants import PRIORITY_S
from scheduling.policies.fusion.length_buckets import BucketHeads

# How many times its first-come-first-served time a request waits at most before it is due. Lower values bound the wait
# of long requests, higher ones let short requests overtake for longer. Chosen, not tuned.
MAX_FCFS_RATIO = 4.0
# The least scale in seconds, so that the delay still decides between workers when nothing else waits. Any value far
# below the time between arrivals does.
MIN_SCALE_S = 1e-3
# Added to keys, which are seconds relative to now, so that due requests come before urgent ones and both before all
# others. Any values do that are further apart than waits, deadlines and priorities reach (1e9 s are 31 years).
DUE_OFFSET, URGENT_OFFSET = -1e12, -1e9
MIN_TAU = 0.1  # with a lower rank correlation predicted lengths do not count at all; not tuned


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """How much the fleet has to do."""

    drain_s: float  # seconds until the whole fleet would have served all that waits
    step_s: float  # mean seconds of an iteration as the batches are now
    seconds_per_feature: Floats  # (features,): seconds that the whole fleet takes for a unit of each work feature


def priority_keys(heads: BucketHeads, delay_s: Floats, load: FleetLoad, now: float) -> Floats:
    """Keys (workers, requests) in seconds relative to `now`, from delays (workers, requests) in seconds."""
    scale_s = max(MIN_SCALE_S, load.drain_s)
    arrived_s = heads.arrived_at - now - PRIORITY_S * heads.priority
    keys = arrived_s + scale_s * np.log(delay_s)
    return np.asarray(np.minimum(keys, due_or_urgent_keys(heads, load, now)), np.float64)


def due_or_urgent_keys(heads: BucketHeads, load: FleetLoad, now: float) -> Floats:
    """Keys (requests,) of those that are due or may soon miss their deadline, whatever they delay; else infinite.

    A request is urgent if its slack, what remains until the deadline beyond its own generation, is shorter than the
    fleet needs for what waits and for the request itself.
    """
    slack_s = heads.deadline_at - now - heads.remaining_upper * load.step_s
    is_urgent = slack_s < load.drain_s + heads.remaining * load.step_s
    fcfs_s = load.seconds_per_feature @ heads.work_ahead + heads.remaining * load.step_s
    due_at = heads.arrived_at + MAX_FCFS_RATIO * fcfs_s
    keys = np.where(is_urgent, URGENT_OFFSET + np.maximum(slack_s, 0.0), np.inf)
    return np.asarray(np.where(due_at <= now, DUE_OFFSET + due_at - now, keys), np.float64)


def prediction_weight(tau: float | None) -> float:
    """The exponent, 0 to 1, with which predicted lengths count: the linear correlation that Kendall's tau stands for.

    For normal variables that is sin(π/2 · τ). With 0 requests of equal prompts go first come, first served. Until tau
    is known (None), predictions count in full.
    """
    if tau is None:
        return 1.0
    return math.sin(math.pi / 2 * tau) if tau >= MIN_TAU else 0.0
