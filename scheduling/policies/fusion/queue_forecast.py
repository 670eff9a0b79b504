"""The waiting requests in the order in which they would be served if no other came: for the dashboard and for ETAs."""

import heapq
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from scheduling.batch_estimates import waiting_batch
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_bands import work_features
from scheduling.policies.fusion.length_buckets import BucketHeads, LengthBuckets
from scheduling.policies.fusion.priority_key import FleetLoad, priority_keys
from scheduling.policies.virtual_token_counters import VirtualTokenCounters, tokens_of
from scheduling.policy import WaitingBatch
from scheduling.request import Request

# Requests that are put in order by their keys; those behind them follow by arrival. More cost time in every forecast:
# with 100,000 waiting the front takes 14 ms (docs/results/control-plane.md).
REQUESTS_BY_KEY = 2000
MIN_WORK_S = 1e-9  # keys take the logarithm of the work, so it must not be 0; any value below a real request's does


def serving_order(
    by_tenant: Mapping[str, LengthBuckets], counters: VirtualTokenCounters, load: FleetLoad, now: float
) -> Iterator[Request]:
    """Each tenant's requests by key, the tenants in turn by what they will have been served by then.

    Predicted lengths count in full, whatever the predictor's rank correlation. Requests far behind in their bucket
    follow their tenant's others by arrival.
    """
    queues = {
        tenant: _by_key(buckets, REQUESTS_BY_KEY // len(by_tenant), load, now) for tenant, buckets in by_tenant.items()
    }
    turns = [(counters.served(tenant), tenant) for tenant in queues]
    heapq.heapify(turns)
    while turns:
        served, tenant = heapq.heappop(turns)
        if request := next(queues[tenant], None):
            yield request
            heapq.heappush(turns, (served + counters.weighted(tenant, tokens_of(request)), tenant))


def _by_key(buckets: LengthBuckets, count: int, load: FleetLoad, now: float) -> Iterator[Request]:
    front = buckets.first_of_each(count)
    work_s = np.array([work_features(one.request) for one in front]) @ load.seconds_per_feature
    key = priority_keys(BucketHeads.of(front), np.maximum(work_s, MIN_WORK_S), load, now)
    yield from (front[index].request for index in np.argsort(key, kind="stable"))
    in_front = {one.request.id for one in front}
    behind = (one.request for one in buckets if one.request.id not in in_front)
    yield from sorted(behind, key=lambda request: (request.arrived_at, request.id))


def in_batches(requests: Iterable[Request], fleet: FleetArrays, now: float) -> Iterator[WaitingBatch]:
    """The requests in their order, cut into batches of what fits a worker of mean capacity at once.

    All workers count as the first one does, rectangular or paged.

    Rows really come and go one by one; a batch of that size takes about as long as they do.
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
