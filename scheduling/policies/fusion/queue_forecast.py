"""The waiting room as it would be served if nothing else came: for the dashboard and for ETAs."""

import heapq
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from scheduling.batch_estimates import waiting_batch
from scheduling.policies.fusion.fair_shares import VirtualTokenCounters
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import Heads, LengthBuckets
from scheduling.policies.fusion.priority_key import FleetLoad, keys
from scheduling.policies.fusion.work_features import features
from scheduling.policy import WaitingBatch
from scheduling.request import Request

SEEN = 2000  # requests at the front whose order is foreseen


def serving_order(
    lanes: Mapping[str, LengthBuckets], shares: VirtualTokenCounters, load: FleetLoad, now: float
) -> Iterator[Request]:
    """Each tenant's requests by key, the tenants by what they will have been served; lengths are believed.

    What lies behind the front of its lane, out of sight, follows by arrival.
    """
    queues = {tenant: _by_key(waiting, SEEN // len(lanes), load, now) for tenant, waiting in lanes.items()}
    turns = [(shares.served_s(tenant), tenant) for tenant in queues]
    heapq.heapify(turns)
    while turns:
        served_s, tenant = heapq.heappop(turns)
        if request := next(queues[tenant], None):
            yield request
            heapq.heappush(turns, (served_s + float(load.feature_s @ features(request)), tenant))


def _by_key(lanes: LengthBuckets, seen: int, load: FleetLoad, now: float) -> Iterator[Request]:
    front = lanes.front(seen)
    work_s = np.array([features(one.request) for one in front]) @ load.feature_s
    key = keys(Heads.of(front), np.maximum(work_s, 1e-9), load, now)
    yield from (front[place].request for place in np.argsort(key, kind="stable"))
    shown = {one.request.id for one in front}
    behind = (one.request for one in lanes if one.request.id not in shown)
    yield from sorted(behind, key=lambda request: (request.arrived_at, request.id))


def in_batches(requests: Iterable[Request], fleet: FleetArrays, now: float) -> Iterator[WaitingBatch]:
    """What fits one worker at a time as a batch; as fast and as long as rows that come and go."""
    capacity, costs = float(fleet.capacity.mean()), fleet.workers[0].costs
    batch: list[Request] = []
    length = generation_length = 0
    for request in requests:
        longer = max(length, request.prefill), max(generation_length, request.remaining)
        if batch and (len(batch) + 1) * sum(longer) > capacity:
            yield waiting_batch(batch, costs, now)
            batch, longer = [], (request.prefill, request.remaining)
        batch.append(request)
        length, generation_length = longer
    if batch:
        yield waiting_batch(batch, costs, now)
