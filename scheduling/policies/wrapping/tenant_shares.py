"""Shares of the fleet for tenants, under a policy that ignores tenants; `fusion` weighs tenants in its own decisions.

`TenantShares` gives each tenant a policy of its own. The least served tenant, by its weight (VTC), chooses first; what
it leaves is the next one's, so no worker idles while anybody waits. Batches never mix tenants. With one tenant this is
the policy itself. Starvation: what a policy promises holds for each tenant by itself, within the tenant's share. A row
too long for the memory that is free is not kept out by other tenants' shorter ones: they go ahead by no more than a
batch.

`OffloadShares` is for a policy of mode `queue`, as SCLS, which gives all that waits to its workers' queues at once.
Once there are several tenants, the policy sees no more requests at once than fill its workers, those of the least
served tenant first. With one tenant it sees everything, as in its paper. Batches mix tenants. Starvation: a tenant with
waiting requests is the least served one as soon as the others have been served as much, by their weights; its requests
are shown in order of arrival.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scheduling.arrival_queue import ArrivalQueue
from scheduling.costs import ServingTime
from scheduling.policies.virtual_token_counters import VirtualTokenCounters, service_tokens
from scheduling.policies.wrapping.wrapping_policy import WrappingPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, waiting_batch
from scheduling.request import Request

# Least served tenants that are asked until one has work for what is free. With more tenants one may have a request that
# still fits; each costs the time of a decision. As in fusion. Not tuned.
TENANTS_TRIED = 8


class TenantShares(WrappingPolicy):
    """A policy of the same kind for each tenant, and how much each tenant has been served."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._make_policy = make_policy
        self._counters = VirtualTokenCounters()
        self._tau: float | None = None
        self._last = make_policy()  # of the tenant that was asked last
        self._policies: dict[str, Policy] = {}
        self.mode = self._last.mode

    def _inner(self) -> Iterable[Policy]:
        return self._policies.values()

    def _policy_for(self, assignment: Assignment) -> Policy:
        return self._policy_of_tenant(assignment.requests[0].tenant)  # a batch that ended is of one tenant

    def _policy_of_tenant(self, tenant: str) -> Policy:
        if tenant not in self._policies:
            self._counters.activate(tenant, self._waiting_tenants())
            self._policies[tenant] = self._make_policy() if self._policies else self._last
            self._policies[tenant].set_rank_correlation(self._tau)
        return self._policies[tenant]

    def _activated(self, tenant: str) -> Policy:
        """Return the tenant's policy, to which a request is about to be added."""
        policy = self._policy_of_tenant(tenant)
        if len(self._policies) > 1 and not len(policy):
            self._counters.activate(tenant, self._waiting_tenants())
        return policy

    def add(self, request: Request, now: float) -> None:
        """Add a request to its tenant's policy."""
        self._activated(request.tenant).add(request, now)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let the least served tenants assign, one idle worker after the other; rows join as far as they fit."""
        if len(self._policies) <= 1:
            return self._last.assign(workers, now)
        if self.mode == "batch":
            return list(self._batches(workers, now))
        return list(self._joins({worker.name: worker for worker in workers}, now))

    def _batches(self, workers: Sequence[Worker], now: float) -> Iterator[Assignment]:
        """Offer one idle worker at a time, as if all others were busy."""
        busy = [replace(worker, queued=worker.queued + 1) for worker in workers]
        for index, worker in enumerate(workers):
            if worker.idle:
                seen = [*busy[:index], worker, *busy[index + 1 :]]
                for tenant in self._next_tenants():
                    if assignments := self._ask(tenant, seen, now):
                        yield from assignments
                        break

    def _joins(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        """Offer all workers to one tenant after the other; if nothing waits, to the last one, for it may preempt rows.

        Where a request of a tenant still waits, the better served tenants go ahead by no more than its next batch.
        """
        most = math.inf
        for tenant in self._next_tenants() or [next(name for name, one in self._policies.items() if one is self._last)]:
            if self._counters.served(tenant) > most:
                return
            for assignment in self._ask(tenant, list(workers.values()), now):
                workers[assignment.worker] = workers[assignment.worker].given(assignment, now)
                yield assignment
            most = min(most, self._limit_for_others(tenant, workers.values(), now))

    def _limit_for_others(self, tenant: str, workers: Iterable[Worker], now: float) -> float:
        """Return the counter up to which others are served; infinity if no worker could take this tenant's requests."""
        largest_tokens = max((worker.memory.capacity_tokens for worker in workers), default=0)
        batch = next(iter(self._policies[tenant].waiting(now)), None)
        if batch is None or batch.requests[0].prefill >= largest_tokens:
            return math.inf
        tokens = sum(map(service_tokens, batch.requests))
        return self._counters.served(tenant) + self._counters.weighted(tenant, tokens)

    def _ask(self, tenant: str, workers: Sequence[Worker], now: float) -> list[Assignment]:
        self._last = self._policies[tenant]
        assignments = self._last.assign(workers, now)
        for assignment in assignments:
            tokens = sum(service_tokens(request, assignment.iteration_limit) for request in assignment.requests)
            self._counters.charge(tenant, tokens)
        return assignments

    def _waiting_tenants(self) -> list[str]:
        return [tenant for tenant, policy in self._policies.items() if len(policy)]

    def _next_tenants(self) -> list[str]:
        return self._counters.least_served(self._waiting_tenants())[:TENANTS_TRIED]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Take back a batch that did not fit; a batch that another policy had made may be of several tenants."""
        for tenant in sorted({request.tenant for request in assignment.requests}):
            requests = tuple(request for request in assignment.requests if request.tenant == tenant)
            policy = self._activated(tenant)
            if len(requests) == 1 < len(assignment.requests):
                policy.add(requests[0], now)
            else:
                policy.out_of_memory(replace(assignment, requests=requests), now)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Keep Kendall's tau for new tenants, too, and pass it on."""
        self._tau = tau
        super().set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet by these weights from now on; the inner policies need none."""
        self._counters.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield each tenant's batches in its policy's order, the tenants in turn by what they will have been served."""
        if len(self._policies) <= 1:
            yield from self._last.waiting(now)
            return
        queues = {tenant: iter(self._policies[tenant].waiting(now)) for tenant in self._waiting_tenants()}
        yield from self._counters.in_turn(queues, lambda batch: sum(map(service_tokens, batch.requests)))


# Of what all workers' memories hold together. In `benchmarks.api tenants` shares are 61, 6 and 3 % off with 2, 1 and
# 0.5, and all take 7, 14 and 25 % longer than with all shown: of fewer requests come batches of less similar ones.
SHOWN_AT_ONCE = 1.0


class OffloadShares(WrappingPolicy):
    """One policy, which is shown the requests of the least served tenants first."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._policy = make_policy()
        self.mode = self._policy.mode
        self._counters = VirtualTokenCounters()
        self._held: dict[str, ArrivalQueue] = {}  # by tenant, what the policy has not been shown
        self._shown_tokens = 0  # of what it has not assigned yet
        self._slice_tokens: int | None = None  # of its last batches
        self._costs: ServingTime | None = None

    def __len__(self) -> int:
        return super().__len__() + sum(map(len, self._held.values()))

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def _policy_for(self, assignment: Assignment) -> Policy:
        return self._policy

    def add(self, request: Request, now: float) -> None:
        """Let a request wait until it is its tenant's turn."""
        held = self._held.setdefault(request.tenant, ArrivalQueue())
        if not held:
            self._counters.activate(request.tenant, self._waiting_tenants())
        held.add(request)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        return self._policy.discard(request_id) or any(held.discard(request_id) for held in self._held.values())

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Show the policy the next requests and let it assign them."""
        if not workers:
            return []
        self._costs = workers[0].costs
        capacity_tokens = sum(worker.memory.capacity_tokens for worker in workers)
        alone = len(self._waiting_tenants()) == 1
        if not len(self._policy):  # what it had been shown was assigned, or discarded
            self._shown_tokens = 0
        self._show(math.inf if alone else SHOWN_AT_ONCE * capacity_tokens, now)
        assignments = self._policy.assign(workers, now)
        if assignments:
            self._slice_tokens = assignments[0].iteration_limit
        return assignments

    def _show(self, most: float, now: float) -> None:
        turns = [(self._counters.served(tenant), tenant) for tenant in self._waiting_tenants()]
        heapq.heapify(turns)
        while turns and self._shown_tokens < most:
            _, tenant = heapq.heappop(turns)
            (request,) = self._held[tenant].take(1)
            tokens = service_tokens(request, self._slice_tokens)
            self._shown_tokens += tokens
            self._counters.charge(tenant, tokens)
            self._policy.add(request, now)
            if self._held[tenant]:
                heapq.heappush(turns, (self._counters.served(tenant), tenant))

    def _waiting_tenants(self) -> list[str]:
        return [tenant for tenant, held in self._held.items() if held]

    def wake_at(self, now: float) -> float | None:
        """Return when the policy wants to be asked again, even if it has not been shown yet what waits."""
        return super().wake_at(now) if len(self) else None

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet by these weights from now on."""
        self._counters.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield what the policy has been shown, then the tenants' requests in turn."""
        yield from self._policy.waiting(now)
        for request in self._held_in_turn():
            yield waiting_batch((request,), self._costs, now, self._slice_tokens)

    def _held_in_turn(self) -> Iterator[Request]:
        queues = {tenant: iter(self._held[tenant]) for tenant in self._waiting_tenants()}
        return self._counters.in_turn(queues, lambda request: service_tokens(request, self._slice_tokens))
