"""Shares of the fleet for tenants, under a policy that knows of none: each tenant has a policy of its own.

The least served tenant, by its weight (VTC), chooses first; what it leaves is the next one's, so no worker idles while
anybody waits. Batches never mix tenants. With one tenant this is the policy itself. `fusion` weighs tenants within its
decisions and needs none of this; a policy of mode `queue` gives all that waits to its workers at once: see
`offload_shares`.

Starvation: what a policy promises holds for each tenant by itself, within the tenant's share. A row too long for the
memory that is free is not kept out by other tenants' shorter ones: they go ahead by no more than a batch.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scheduling.policies.virtual_token_counters import VirtualTokenCounters, tokens_of
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker
from scheduling.request import Request

# Least served tenants that are asked until one has work for what is free. With more tenants one may have a request that
# still fits; each costs the time of a decision. As in fusion. Not tuned.
TENANTS_TRIED = 8


class TenantShares(Policy):
    """A policy of the same kind for each tenant, and how much each tenant has been served."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._make_policy = make_policy
        self._counters = VirtualTokenCounters()
        self._tau: float | None = None
        self._last = make_policy()  # of the tenant that was asked last
        self._policies: dict[str, Policy] = {}
        self.mode = self._last.mode

    def __len__(self) -> int:
        return sum(map(len, self._policies.values()))

    def _of(self, tenant: str) -> Policy:
        if tenant not in self._policies:
            self._counters.activate(tenant, self._waiting_tenants())
            self._policies[tenant] = self._make_policy() if self._policies else self._last
            self._policies[tenant].set_rank_correlation(self._tau)
        return self._policies[tenant]

    def _activated(self, tenant: str) -> Policy:
        """The tenant's policy, to which something is about to be added."""
        policy = self._of(tenant)
        if len(self._policies) > 1 and not len(policy):
            self._counters.activate(tenant, self._waiting_tenants())
        return policy

    def add(self, request: Request, now: float) -> None:
        """To its tenant's policy."""
        self._activated(request.tenant).add(request, now)

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out; False if it does not wait here."""
        return any(policy.discard(request_id) for policy in self._policies.values())

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """What the least served tenants assign, one idle worker after the other; rows join as far as they fit."""
        if len(self._policies) <= 1:
            return self._last.assign(workers, now)
        if self.mode == "batch":
            return list(self._batches(workers, now))
        return list(self._joins({worker.name: worker for worker in workers}, now))

    def _batches(self, workers: Sequence[Worker], now: float) -> Iterator[Assignment]:
        """One idle worker at a time is offered, as if all others were busy."""
        busy = [replace(worker, queued=worker.queued + 1) for worker in workers]
        for index, worker in enumerate(workers):
            if worker.idle:
                seen = [*busy[:index], worker, *busy[index + 1 :]]
                for tenant in self._next_tenants():
                    if assignments := self._ask(tenant, seen, now):
                        yield from assignments
                        break

    def _joins(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        """Also if nothing waits a policy is asked: it may want rows to leave.

        Where something of a tenant still waits, the better served ones go ahead by no more than its next batch.
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
        """The counter up to which others are served; none if nothing of this tenant waits that a worker could take."""
        largest_tokens = max((worker.memory.capacity_tokens for worker in workers), default=0)
        batch = next(iter(self._policies[tenant].waiting(now)), None)
        if batch is None or batch.requests[0].prefill >= largest_tokens:
            return math.inf
        tokens = sum(map(tokens_of, batch.requests))
        return self._counters.served(tenant) + self._counters.weighted(tenant, tokens)

    def _ask(self, tenant: str, workers: Sequence[Worker], now: float) -> list[Assignment]:
        self._last = self._policies[tenant]
        assignments = self._last.assign(workers, now)
        for assignment in assignments:
            tokens = sum(tokens_of(request, assignment.iteration_limit) for request in assignment.requests)
            self._counters.charge(tenant, tokens)
        return assignments

    def _waiting_tenants(self) -> list[str]:
        return [tenant for tenant, policy in self._policies.items() if len(policy)]

    def _next_tenants(self) -> list[str]:
        return self._counters.least_served(self._waiting_tenants())[:TENANTS_TRIED]

    def finished(self, assignment: Assignment, now: float) -> None:
        """Take note that a run-to-completion batch has ended on its worker; all of it is of one tenant."""
        for tenant in {request.tenant for request in assignment.requests}:
            self._of(tenant).finished(assignment, now)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Take back a batch that did not fit; one that another policy had made may be of several tenants."""
        for tenant in sorted({request.tenant for request in assignment.requests}):
            requests = tuple(request for request in assignment.requests if request.tenant == tenant)
            policy = self._activated(tenant)
            if len(requests) == 1 < len(assignment.requests):
                policy.add(requests[0], now)
            else:
                policy.out_of_memory(replace(assignment, requests=requests), now)

    def wake_at(self, now: float) -> float | None:
        """When the first policy wants to be asked again."""
        instants = (policy.wake_at(now) for policy in self._policies.values())
        return min((at for at in instants if at is not None), default=None)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Take note of Kendall's tau of recent predictions and answers."""
        self._tau = tau
        for policy in self._policies.values():
            policy.set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet by these weights from now on."""
        self._counters.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Each tenant's batches in its policy's order, the tenants in turn by what they will have been served."""
        if len(self._policies) <= 1:
            yield from self._last.waiting(now)
            return
        queues = {tenant: iter(self._policies[tenant].waiting(now)) for tenant in self._waiting_tenants()}
        turns = [(self._counters.served(tenant), tenant) for tenant in queues]
        heapq.heapify(turns)
        while turns:
            served, tenant = heapq.heappop(turns)
            if batch := next(queues[tenant], None):
                yield batch
                weighted = self._counters.weighted(tenant, sum(map(tokens_of, batch.requests)))
                heapq.heappush(turns, (served + weighted, tenant))
