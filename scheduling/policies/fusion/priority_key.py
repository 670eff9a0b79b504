"""Who goes first: the earliest arrival, moved back by a logarithm of the delay that it causes.

    key = arrived_at - priority · PRIORITY_S + scale · ln(delay)

The smallest key goes first. The logarithm with the time constant of the waiting time as its scale makes long waits
rarest when queues are long (γ-Boost), while short requests gain most of what shortest-first would give them. The scale
is the time in which the fleet would serve what waits: nothing is overtaken where nothing waits.

Nobody starves. A request is due once it has waited PATIENCE times as long as first come, first served would have kept
it, served alone after all that waited when it came; those who are due go first, in order of that instant.
"""

import math
from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.fusion.length_buckets import Heads

PATIENCE = 4.0
PRIORITY_S = 300.0  # how much waiting a level of priority is worth
LEAST_SCALE_S = 1e-3  # decides between workers when nothing else waits
DUE, URGENT = -1e12, -1e9  # added to keys: first those who are due, then those who would miss their deadline


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """How full the house is: `drain_s` until what waits would be served, `step_s` of an iteration as it is now, and
    the seconds of the whole fleet that each feature of a request takes."""

    drain_s: float
    step_s: float
    feature_s: Floats


def keys(heads: Heads, delay_s: Floats, load: FleetLoad, now: float) -> Floats:
    """Keys of (workers, requests), relative to `now`; a delay of (workers, requests) in seconds."""
    scale_s = max(LEAST_SCALE_S, load.drain_s)
    came_at = heads.arrived_at - now - PRIORITY_S * heads.priority
    return np.asarray(np.minimum(came_at + scale_s * np.log(delay_s), keys_of_first(heads, load, now)), np.float64)


def keys_of_first(heads: Heads, load: FleetLoad, now: float) -> Floats:
    """The keys of requests that are due or would miss their deadline, whatever they delay; infinite for all others."""
    slack_s = heads.deadline_at - now - heads.remaining_upper * load.step_s
    urgent = slack_s < load.drain_s + heads.remaining * load.step_s
    fcfs_s = load.feature_s @ heads.ahead + heads.remaining * load.step_s
    due_at = heads.arrived_at + PATIENCE * fcfs_s
    key = np.where(urgent, URGENT + np.maximum(slack_s, 0.0), np.inf)
    return np.asarray(np.where(due_at <= now, DUE + due_at - now, key), np.float64)


def certainty(tau: float | None) -> float:
    """How far predicted lengths may change the order: the correlation that Kendall's tau stands for, 0 if it is poor.

    With 0 the order is first come, first served among equal prompts. Until tau is known, predictions are believed.
    """
    if tau is None:
        return 1.0
    return math.sin(math.pi / 2 * tau) if tau >= 0.1 else 0.0
