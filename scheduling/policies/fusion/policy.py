"""Ours: continuous batching by predicted length, the paper's own future work, with what the field has found since.

- Order: arrival, moved back by the logarithm of the delay that a request causes; priorities, deadlines (`order`).
- Admission: as many rows as fit their predicted future, reserved by an upper quantile (`future_memory`), predicted
  again for rows that outlive their prediction (`outliving`).
- Placement: where a row delays everyone least, rows of similar length together (`delay`, `bands`).
- Joins: in groups, when they are worth the stop of the running rows (`holding`), prefilled by similar length.
- Fairness: the least served tenant goes first (`fairness`).
- Guard: the lower Kendall's tau of the predictor, the less predictions change the order, down to FCFS (`set_rank_correlation`).

Starvation: none is possible. A request that is due (see `order`) goes before all that are not; if it fits nowhere, a
worker takes nobody else until it does, which is at most until that worker's rows have ended.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

import numpy as np

from scheduling.batch_estimates import waiting_batch
from scheduling.out_of_memory import reserve_limit
from scheduling.policies.fusion.admission import candidate_workers
from scheduling.policies.fusion.delay_cost import DelayedRequests, delay_s
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.join_buffer import JoinBuffer
from scheduling.policies.fusion.length_bands import upper_edges
from scheduling.policies.fusion.length_buckets import LengthBuckets, WaitingRequest
from scheduling.policies.fusion.matching import best_pairs
from scheduling.policies.fusion.priority_key import FleetLoad, certainty, keys, keys_of_first
from scheduling.policies.fusion.queue_forecast import in_batches, serving_order
from scheduling.policies.fusion.tenant_queues import TenantQueues
from scheduling.policies.fusion.work_features import NOTHING, coefficients, features
from scheduling.policies.fusion.worker_reservation import WorkerReservation
from scheduling.policy import Assignment, Mode, Policy, WaitingBatch, Worker
from scheduling.request import Request

TENANTS_TRIED = 8  # the least served, before the fleet counts as full


class Fusion(Policy):
    """Looks at the heads of lanes of alike requests: a decision takes the same time however many wait."""

    mode: Mode = "continuous"

    def __init__(self) -> None:
        self._room = TenantQueues()
        self._holding = JoinBuffer()
        self._kept_free = WorkerReservation()
        self._certainty = 1.0
        self._fleet: FleetArrays | None = None

    def __len__(self) -> int:
        return len(self._room) + len(self._holding)

    def add(self, request: Request, now: float) -> None:
        """Into its lane; one that comes back unfinished was ahead of all that waits."""
        self._room.put(WaitingRequest(request, self._room.backlog.total() if request.generated == 0 else NOTHING))

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out."""
        if request_id in self._room:
            self._room.take(request_id)
            return True
        return self._holding.let_go(request_id) is not None

    def set_rank_correlation(self, tau: float | None) -> None:
        """Predictions change the order as far as they deserve."""
        self._certainty = certainty(tau)

    def wake_at(self, now: float) -> float | None:
        """When those who are held for company will have waited enough."""
        return self._holding.wake_at

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """They wait again; a request that did not fit alone is known to need more than was thought."""
        alone = len(assignment.requests) == 1
        for request in assignment.requests:
            self.add(reserve_limit(request) if alone else request, now)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Match requests and workers until nothing more fits; joins that are not worth it yet wait for company."""
        offered = [worker for worker in workers if not worker.queued]
        if not offered or not len(self):
            return []
        self._fleet = fleet = FleetArrays(offered)
        self._seat_held(fleet)
        load = self._load(fleet)
        crowd = DelayedRequests(
            (len(self._room) + int(fleet.size.sum())) / len(fleet),
            upper_edges(fleet, self._room.backlog.work_s(fleet)),
        )
        for lanes in self._room.lanes.values():
            lanes.give_up_hopeless(now, load.step_s)
        while self._match(fleet, crowd, load, now):
            pass
        released = self._holding.release(dict(zip(fleet.names, fleet.join_s().tolist(), strict=True)), now)
        lines = [(line, released[name]) for line, name in enumerate(fleet.names) if name in released]
        return [_assignment(fleet, line, joiners) for line, joiners in lines]

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """What waits in the order in which it would be served, in batches of what fits one worker."""
        if not self._fleet:
            every = sorted((one.request for one in self._room), key=lambda request: (request.arrived_at, request.id))
            return (waiting_batch((request,), None, now) for request in every)
        held = [waiting.request for _, waiting in self._holding]
        order = serving_order(self._room.lanes, self._room.shares, self._load(self._fleet), now)
        return in_batches(chain(held, order), self._fleet, now)

    def _load(self, fleet: FleetArrays) -> FleetLoad:
        seconds = coefficients(fleet) / len(fleet)
        return FleetLoad(float(seconds @ self._room.backlog.total()), float(fleet.step_s().mean()), seconds)

    def _seat_held(self, fleet: FleetArrays) -> None:
        """Those who are held keep their places, unless the worker has gone or its rows have outgrown them."""
        lines = {name: line for line, name in enumerate(fleet.names)}
        for name, waiting in list(self._holding):
            line = lines.get(name)
            if line is None or not fleet.holds(line, waiting.request.prefill):
                self._holding.let_go(waiting.request.id)
                self._room.put(waiting)
            else:
                fleet.join(line, waiting.request)

    def _match(self, fleet: FleetArrays, crowd: DelayedRequests, load: FleetLoad, now: float) -> bool:
        """Some of the least served tenant of whom something fits join, until another has been served less."""
        if self._kept_free and not (self._kept_free.request_id in self._room and self._kept_free.among(fleet)):
            self._kept_free.forget()
        shares, tenants = self._room.shares, self._room.least_served(TENANTS_TRIED)
        for tenant, other in zip_longest(tenants, tenants[1:]):
            lanes = self._room.lanes[tenant]
            some = False
            for worker, waiting in self._pairs(fleet, crowd, lanes, load, now):
                self._room.take(waiting.request.id)
                fleet.join(worker, waiting.request)
                self._holding.hold(fleet.names[worker], waiting, now)
                shares.charge(tenant, float(load.feature_s @ features(waiting.request)))
                some = True
                if other is not None and shares.served_s(other) < shares.served_s(tenant):
                    break
            if some:
                return True
            self._keep_free(fleet, lanes, load, now)
        return False

    def _pairs(
        self, fleet: FleetArrays, crowd: DelayedRequests, lanes: LengthBuckets, load: FleetLoad, now: float
    ) -> Iterable[tuple[int, WaitingRequest]]:
        """Workers with requests of one tenant, the smallest key first."""
        heads = lanes.heads()
        workers = candidate_workers(fleet, heads)
        if not len(workers):
            return ()
        mean = self._room.mean_remaining()
        # as uncertain as lengths are, they are drawn towards their mean
        remaining = mean * (heads.remaining / mean) ** self._certainty
        key = keys(heads, delay_s(fleet, crowd, workers, heads.prefill, remaining), load, now)
        self._kept_free.close(fleet, workers, lanes, key)
        return best_pairs(fleet, lanes, workers, key)

    def _keep_free(self, fleet: FleetArrays, lanes: LengthBuckets, load: FleetLoad, now: float) -> None:
        """If one that is due or urgent fits nowhere, the worker where it will soonest is kept free for it."""
        key = keys_of_first(lanes.heads(), load, now)
        first = lanes.first(lanes.names()[int(key.argmin())])
        if first and key.min() < np.inf and not self._kept_free:
            self._kept_free.keep(fleet, first.request)


def _assignment(fleet: FleetArrays, line: int, joiners: Sequence[WaitingRequest]) -> Assignment:
    """One worker's joiners; it prefills those of similar length together."""
    requests = tuple(waiting.request for waiting in joiners)
    iterations = max(request.remaining for request in requests)
    return Assignment(fleet.names[line], requests, joins=True, estimated_s=iterations * float(fleet.step_s()[line]))
