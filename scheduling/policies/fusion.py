"""Ours: continuous batching by predicted length, the paper's own future work, with what the field has found since.

- Order: arrival, moved back by the logarithm of the delay that a request causes; priorities, deadlines (`order`).
- Admission: as many rows as fit their predicted future, reserved by an upper quantile (`future_memory`), predicted
  again for rows that outlive their prediction (`outliving`).
- Placement: where a row delays everyone least, rows of similar length together (`delay`, `bands`).
- Joins: in groups, when they are worth the stop of the running rows (`holding`), prefilled by similar length.
- Fairness: the least served tenant goes first (`fairness`).
- Guard: the lower Kendall's tau of the predictor, the less predictions change the order, down to FCFS (`trust`).

Starvation: none is possible. A request that is due (see `order`) goes before all that are not; if it fits nowhere, a
worker takes nobody else until it does, which is at most until that worker's rows have ended.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from scheduling.costs import Floats
from scheduling.curves import curves_of
from scheduling.describing import waiting_batch
from scheduling.fusion.admission import fits_soonest
from scheduling.fusion.bands import Backlog, upper_edges
from scheduling.fusion.delay import Crowd, delay_s
from scheduling.fusion.fairness import VirtualTokenCounters
from scheduling.fusion.features import NOTHING, coefficients
from scheduling.fusion.fleet import Fleet
from scheduling.fusion.holding import Holding
from scheduling.fusion.lanes import Heads, Lanes, Waiting
from scheduling.fusion.matching import best_pairs
from scheduling.fusion.order import URGENT, Load, certainty, keys
from scheduling.fusion.outlook import in_batches, serving_order
from scheduling.policy import Assignment, Mode, Policy, WaitingBatch, Worker
from scheduling.prefilling import prefill_groups
from scheduling.recovery import reserve_limit
from scheduling.request import Request

TENANTS_TRIED = 8  # the least served, before the fleet counts as full


class Fusion(Policy):
    """Keeps every tenant's requests in lanes of alike ones: a decision takes the same time however many wait."""

    mode: Mode = "continuous"

    def __init__(self) -> None:
        self._lanes: dict[str, Lanes] = {}  # of tenants of whom something waits
        self._tenant_of: dict[str, str] = {}
        self._backlog = Backlog()
        self._shares = VirtualTokenCounters()
        self._holding = Holding()
        self._certainty = 1.0
        self._kept_free: tuple[str, str] | None = None  # a worker, and the request that is due and fits nowhere yet
        self._fleet: Fleet | None = None

    def __len__(self) -> int:
        return len(self._tenant_of)

    def add(self, request: Request, now: float) -> None:
        """Into its lane; one that comes back unfinished was ahead of all that waits."""
        self._put(Waiting(request, self._backlog.total() if request.generated == 0 else NOTHING))

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out."""
        return request_id in self._tenant_of and bool(self._take(request_id))

    def trust(self, tau: float | None) -> None:
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
        fleet = Fleet([worker for worker in workers if not worker.queued])
        if not len(fleet) or not self._tenant_of:
            return []
        self._fleet = fleet
        load = self._load(fleet)
        edges = upper_edges(fleet, self._backlog.work_s(fleet))
        crowd = Crowd((len(self) + int(fleet.size.sum())) / len(fleet), edges)
        for lanes in self._lanes.values():
            lanes.give_up_hopeless(now, load.step_s)
        joining: list[list[Waiting]] = [[] for _ in fleet.workers]
        while pairs := self._match(fleet, crowd, load, now):
            for worker, waiting in pairs:
                request = waiting.request
                fleet.join(worker, request.prefill, request.remaining, request.remaining_upper)
                joining[worker].append(waiting)
        return self._release(fleet, joining, now)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """What waits in the order in which it would be served, in batches of what fits one worker."""
        if not self._fleet:
            every = sorted(
                (one.request for lanes in self._lanes.values() for one in lanes),
                key=lambda request: (request.arrived_at, request.id),
            )
            return (waiting_batch((request,), None, now) for request in every)
        load = self._load(self._fleet)
        return in_batches(serving_order(self._lanes, self._shares, load, now), self._fleet, now)

    def _load(self, fleet: Fleet) -> Load:
        seconds = coefficients(fleet) / len(fleet)
        return Load(float(seconds @ self._backlog.total()), fleet.step_s(), seconds)

    def _match(self, fleet: Fleet, crowd: Crowd, load: Load, now: float) -> list[tuple[int, Waiting]]:
        """At most one request to each worker, of the least served tenant of whom something fits."""
        self._forget_kept_free(fleet)
        tenants = sorted(self._lanes, key=lambda tenant: (self._shares.served_s(tenant), tenant))
        for tenant in tenants[:TENANTS_TRIED]:
            lanes = self._lanes[tenant]
            heads, names = lanes.heads(), lanes.names()
            key = keys(heads, self._delay_s(fleet, crowd, heads), load, now)
            self._leave_free(fleet, lanes, key)
            pairs = best_pairs(fleet, heads, key)
            if not pairs:
                self._keep_free(fleet, lanes.first(names[int(key.min(axis=0).argmin())]), float(key.min()))
                continue
            taken = []
            for worker, place in pairs if len(tenants) == 1 else pairs[:1]:
                waiting = lanes.first(names[place])
                if waiting and fleet.holds(worker, waiting.request.prefill):
                    taken.append((worker, self._take(waiting.request.id)))
            return taken
        return []

    def _delay_s(self, fleet: Fleet, crowd: Crowd, heads: Heads) -> Floats:
        """What each request's joining would cost; lengths as uncertain as they are drawn towards their mean."""
        rows, _, tokens, _ = self._backlog.total()
        mean = max(1.0, tokens / max(1.0, rows))
        believed = mean * (heads.remaining / mean) ** self._certainty
        return delay_s(fleet, crowd, heads.prefill, believed)

    def _forget_kept_free(self, fleet: Fleet) -> None:
        """The request has found a place or gone, or the worker has."""
        if self._kept_free:
            name, request_id = self._kept_free
            if request_id not in self._tenant_of or name not in {worker.name for worker in fleet.workers}:
                self._kept_free = None

    def _leave_free(self, fleet: Fleet, lanes: Lanes, key: Floats) -> None:
        """A worker that is kept free takes nobody else."""
        if self._kept_free:
            name, request_id = self._kept_free
            worker = next(place for place, worker in enumerate(fleet.workers) if worker.name == name)
            place = lanes.place_of(request_id)
            allowed = None if place is None else key[worker, place]
            key[worker] = np.inf
            if place is not None and allowed is not None:
                key[worker, place] = allowed

    def _keep_free(self, fleet: Fleet, waiting: Waiting | None, key: float) -> None:
        """One that is due or urgent fits nowhere: the worker where it will soonest is kept free for it."""
        if waiting and key < URGENT / 2 and not self._kept_free:
            request = waiting.request
            worker = fits_soonest(fleet, request.prefill, request.remaining_upper)
            self._kept_free = fleet.workers[worker].name, request.id

    def _release(self, fleet: Fleet, joining: list[list[Waiting]], now: float) -> list[Assignment]:
        """The joins that are worth it; the others wait on."""
        price_s = fleet.join_s()
        joiners = {worker.name: len(group) for worker, group in zip(fleet.workers, joining, strict=True) if group}
        prices_s = {worker.name: float(price) for worker, price in zip(fleet.workers, price_s, strict=True)}
        released = self._holding.release(joiners, prices_s, now)
        assignments: list[Assignment] = []
        for place, (worker, group) in enumerate(zip(fleet.workers, joining, strict=True)):
            if worker.name in released:
                assignments += self._assignments(fleet, place, [waiting.request for waiting in group])
            else:
                for waiting in group:
                    self._put(waiting)
        return assignments

    def _assignments(self, fleet: Fleet, place: int, requests: Sequence[Request]) -> Iterable[Assignment]:
        """One worker's joiners in groups that are prefilled together."""
        worker = fleet.workers[place]
        step_s = float(fleet.d4[place] + fleet.size[place] * (fleet.d2[place] + fleet.d1[place] * fleet.longest[place]))
        for group in prefill_groups(requests, curves_of(worker.costs)):
            estimated_s = step_s * max(request.remaining for request in group)
            yield Assignment(worker.name, group, joins=True, estimated_s=estimated_s)

    def _put(self, waiting: Waiting) -> None:
        request = waiting.request
        if request.tenant not in self._lanes:
            self._shares.arrives(request.tenant, list(self._lanes))
            self._lanes[request.tenant] = Lanes()
        self._lanes[request.tenant].add(waiting)
        self._tenant_of[request.id] = request.tenant
        self._backlog.add(request)

    def _take(self, request_id: str) -> Waiting:
        tenant = self._tenant_of.pop(request_id)
        waiting = self._lanes[tenant].take(request_id)
        if not len(self._lanes[tenant]):
            del self._lanes[tenant]
        self._backlog.remove(waiting.request)
        return waiting
