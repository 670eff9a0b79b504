"""`fusion` with one of its parts replaced by something simpler, for the simulator and for a real service.

Imports of `benchmarks` nothing, because the processes of a service import it (`benchmarks/live/changed_fusion`).
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.policies.fusion import fusion_policy
from scheduling.policies.fusion.delay_cost import UPPER_EDGES, DelayedRequests, delay_s, seconds_per_feature
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.join_buffer import JoinBuffer
from scheduling.policies.fusion.length_buckets import WaitingRequest

Patch = tuple[Any, str, object]  # a module or class, a name in it, and what replaces it


def at_once(buffer: JoinBuffer, _: Mapping[str, float], now: float) -> dict[str, list[WaitingRequest]]:
    """Let every joiner join at once."""
    released = {worker: list(group.joiners.values()) for worker, group in buffer.groups.items()}
    buffer.groups.clear()
    buffer.wake_at = None
    return released


def one_band(fleet: FleetArrays, waiting_s: Floats) -> Floats:
    """Give every worker a band of all lengths that wait."""
    return np.full(len(fleet), UPPER_EDGES[np.flatnonzero(waiting_s).max(initial=0)])


def by_arrival(
    fleet: FleetArrays, delayed: DelayedRequests, workers: Ints, prefill: Floats, remaining: Floats
) -> Floats:
    """Compare the workers for each request by the delay, but not the requests with each other."""
    delays = delay_s(fleet, delayed, workers, prefill, remaining)
    return np.asarray(delays / delays.min(axis=0), np.float64)


def by_rows(fleet: FleetArrays, _: DelayedRequests, workers: Ints, prefill: Floats, remaining: Floats) -> Floats:
    """Order the requests by their own work, and take the worker with the fewest rows."""
    work = np.stack([np.ones_like(prefill), prefill, remaining, remaining * (prefill + remaining / 2)])
    return np.asarray((1 + fleet.size[workers, None] / 1000) * (seconds_per_feature(fleet) @ work), np.float64)


FUSION_VARIANTS: dict[str, list[Patch]] = {
    "no-row-limit": [(FleetArrays, "limit_rows", lambda fleet: None)],
    "joins-at-once": [(JoinBuffer, "release", at_once)],
    "one-band": [(fusion_policy, "upper_edges", one_band)],
    "arrival-order": [(fusion_policy, "delay_s", by_arrival)],
    "fewest-rows": [(fusion_policy, "delay_s", by_rows)],
    "predictions-in-full": [(fusion_policy, "prediction_weight", lambda tau: 1.0)],
}


@contextmanager
def replaced(patches: list[Patch]) -> Iterator[None]:
    """Replace these names while the context runs."""
    with ExitStack() as stack:
        for where, name, other in patches:
            stack.enter_context(patch.object(where, name, other))
        yield
