"""Orders requests by arrival time plus a logarithm of the delay that each causes.

    key = arrived_at - level · PRIORITY_S + scale · ln(delay)

The smallest key goes first. If its scale is the time constant of the waiting time, the logarithm makes long waits
rarest when queues are long (γ-Boost), while short requests gain most of what shortest-first would give them. The scale
used here is the time in which the fleet would serve all waiting requests, or a multiple of it (`Favour`): in an empty
queue nothing is overtaken. Work counts in seconds at the measured pace (`serving_pace`).

No request starves. A request is due once it has waited some times its time under first come, first served: the work
that waited when it arrived, plus its own service alone. Due requests go first, in the order in which they became due.

For the dashboard and for ETAs, `serving_order` and `in_batches` list the waiting requests in the order in which they
would be served if no other came.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.fusion.delay_cost import work_features
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import BucketHeads, LengthBuckets
from scheduling.policy import WaitingBatch, waiting_batch
from scheduling.request import PRIORITY_S, Request
from scheduling.virtual_token_counters import Account, TenantCounters, service_tokens


@dataclass(frozen=True, slots=True)
class Favour:
    """How far and for how long short requests overtake long ones."""

    overtaking: float  # the key's scale as a multiple of the time in which the fleet would serve all waiting requests
    max_fcfs_ratio: float  # a request is due once it has waited this many times its time under first come, first served
    leaves_from: float = math.inf  # a row makes way for a request if it delays all this many times as much


# For the mean: with a ratio of 4 in place of 2, in front of vLLM at 1.3 times saturation, P99 was a sixth higher and
# the mean no lower; in simulated overload the mean was 0.89 to 0.98 times, and P99 1.0 to 1.2 times as high
# (docs/results/outside_engines.md). The others were simulated (docs/results/rivals.md); a ratio of 1 alone gave 0.94 to
# 1.03 of P99 for 1.00 to 1.17 of the mean. Rows that leave raised the share of good answers in 10 of 18 cells and
# lowered it in 3; from 8 times the delay they gained less, from 2 they cost more P99.
FAVOURS = {"mean": Favour(1.0, 2.0), "tail": Favour(0.25, 2.0), "goodput": Favour(4.0, 4.0, 4.0)}

# The least scale in seconds, so that the delay still decides between workers when nothing else waits. Any value far
# below the time between arrivals works.
MIN_SCALE_S = 1e-3
# These are added to keys, which are seconds relative to now, so that due requests come before urgent ones, and both
# before all others. They must be further apart than any waits, deadlines and priorities (1e9 s are 31 years).
DUE_OFFSET, URGENT_OFFSET = -1e12, -1e9


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The fleet's waiting work, and the speed at which the fleet serves it, in seconds at the measured pace."""

    drain_s: float  # the seconds in which the whole fleet would serve all waiting requests
    step_s: float  # the mean seconds of an iteration with the batches as they are now
    seconds_per_feature: Floats  # (features,): the seconds that the whole fleet takes for a unit of each work feature
    favour: Favour = FAVOURS["mean"]
    prompt_tokens: float | None = None  # with so many tokens each prompt counts in the order; None: with its own


def priority_keys(heads: BucketHeads, delay_s: Floats, load: FleetLoad, now: float) -> Floats:
    """Return keys, (workers, requests), in seconds relative to `now`, from delays, (workers, requests), in seconds."""
    scale_s = max(MIN_SCALE_S, load.favour.overtaking * load.drain_s)
    arrived_s = heads.arrived_at - now - PRIORITY_S * heads.level
    keys = arrived_s + scale_s * np.log(delay_s)
    return np.asarray(np.minimum(keys, due_or_urgent_keys(heads, load, now)), np.float64)


def due_or_urgent_keys(heads: BucketHeads, load: FleetLoad, now: float) -> Floats:
    """Return the keys (requests,) of requests that are due or may soon miss their deadline; infinite for all others.

    A request is urgent if its slack (the time until its deadline minus its own generation) is shorter than the fleet
    needs for the waiting work and the request itself.
    """
    slack_s = heads.deadline_at - now - heads.remaining_upper * load.step_s
    is_urgent = slack_s < load.drain_s + heads.remaining * load.step_s
    fcfs_s = load.seconds_per_feature @ heads.work_ahead + heads.remaining * load.step_s
    due_at = heads.arrived_at + load.favour.max_fcfs_ratio * fcfs_s
    keys = np.where(is_urgent, URGENT_OFFSET + np.maximum(slack_s, 0.0), np.inf)
    return np.asarray(np.where(due_at <= now, DUE_OFFSET + due_at - now, keys), np.float64)


# This many requests are sorted by their keys; the others follow by arrival. Sorting more takes more time in every
# forecast: with 100,000 waiting requests it takes 14 ms now (docs/results/control-plane.md).
REQUESTS_BY_KEY = 2000
MIN_WORK_S = 1e-9  # keys take the logarithm of the work, so it must not be 0; any value below a real request's works


def serving_order(
    by_tenant: Mapping[Account, LengthBuckets], counters: TenantCounters, load: FleetLoad, now: float
) -> Iterator[Request]:
    """Yield each tenant's requests by key; tenants take turns by their expected counters.

    Predicted lengths count in full, whatever the predictor's rank correlation; prompts count as in decisions. Requests
    far back in their bucket come after the tenant's other requests, by arrival.
    """
    queues = {
        tenant: _by_key(buckets, REQUESTS_BY_KEY // len(by_tenant), load, now) for tenant, buckets in by_tenant.items()
    }
    return counters.in_turn(queues, service_tokens)


def _by_key(buckets: LengthBuckets, count: int, load: FleetLoad, now: float) -> Iterator[Request]:
    front = buckets.first_of_each(count)
    rows, prefill, remaining, cached = np.array([work_features(one.request) for one in front]).T
    if load.prompt_tokens is not None:
        prefill, cached = np.full(len(front), load.prompt_tokens), cached + remaining * (load.prompt_tokens - prefill)
    work_s = np.stack([rows, prefill, remaining, cached], axis=1) @ load.seconds_per_feature
    key = priority_keys(BucketHeads.from_requests(front), np.maximum(work_s, MIN_WORK_S), load, now)
    yield from (front[index].request for index in np.argsort(key, kind="stable"))
    in_front = {one.request.id for one in front}
    behind = (one.request for one in buckets if one.request.id not in in_front)
    yield from sorted(behind, key=lambda request: (request.arrived_at, request.id))


def in_batches(requests: Iterable[Request], fleet: FleetArrays, now: float) -> Iterator[WaitingBatch]:
    """Yield the requests in their order, in batches that fit a worker of mean capacity.

    Memory is counted as on the first worker, rectangular or paged. In fact rows join and leave one by one, which takes
    about as long as batches of this size.
    """
    capacity, most_rows = float(fleet.capacity.mean()), float(fleet.most_rows.mean())
    memory, costs = fleet.workers[0].memory, fleet.workers[0].costs
    batch: list[Request] = []
    length = generation_length = total = 0
    for request in requests:
        longer = max(length, request.prefill), max(generation_length, request.remaining)
        total += request.prefill + request.remaining
        tokens = memory.rows_tokens(len(batch) + 1, sum(longer), total)
        if batch and (tokens > capacity or len(batch) >= most_rows):
            yield waiting_batch(batch, costs, now)
            batch, longer, total = [], (request.prefill, request.remaining), request.prefill + request.remaining
        batch.append(request)
        length, generation_length = longer
    if batch:
        yield waiting_batch(batch, costs, now)
