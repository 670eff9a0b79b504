"""Shares of the fleet for tenants, under a policy that ignores tenants; `fusion` weighs tenants in its own decisions.

A tenant's requests of the service tier `priority` count as another tenant's, of a larger weight.

`TenantShares` gives each tenant a policy of its own; with `share_of` other things, such as a tenant's bulk jobs. The
least served tenant, by its weight (VTC), chooses first; the next tenant gets the remaining workers, so no worker idles
while anybody waits. Batches never mix tenants. With one tenant this is the policy itself. Starvation: the policy's
guarantee holds for each tenant separately, within its share. Other tenants' shorter rows cannot keep out a row too long
for the free memory: they go ahead by at most a batch.

`OffloadShares` is for policies of mode `queue` such as SCLS, which assign all waiting requests to workers' queues at
once. With several tenants, the policy sees only as many requests as fill its workers, the least served tenant's first.
With one tenant it sees everything, as in its paper. Batches mix tenants. Starvation: a tenant with waiting requests is
the least served one as soon as the others have been served as much, by their weights; its requests are shown in order
of arrival.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from scheduling.arrival_queue import ArrivalQueue
from scheduling.costs import ServingTime
from scheduling.policies.virtual_token_counters import VirtualTokenCounters, service_tokens
from scheduling.policies.wrapping.wrapping_policy import WrappingPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, waiting_batch
from scheduling.request import Request

# Least served tenants that are asked until one has work for the free workers. With more tenants, one that is not asked
# may have a fitting request; each costs a decision. As in fusion. Not tuned.
TENANTS_TRIED = 8
# If there are more policies, those of tenants without a waiting request are dropped, with what they learned of lengths.
# Not tuned.
POLICIES_KEPT = 64


class TenantShares(WrappingPolicy):
    """A policy of the same kind for each tenant, and how much each tenant has been served."""

    def __init__(
        self, make_policy: Callable[[], Policy], share_of: Callable[[Request], str] = attrgetter("account")
    ) -> None:
        """`share_of` names who a request's service is charged to."""
        self._make_policy, self._share_of = make_policy, share_of
        self._counters = VirtualTokenCounters()
        self._tau: float | None = None
        self._asked = ""  # the tenant that was asked last
        self._last = make_policy()  # its policy
        self._policies: dict[str, Policy] = {}
        self.mode = self._last.mode

    def _inner(self) -> Iterable[Policy]:
        return self._policies.values()

    def _policy_of_tenant(self, tenant: str) -> Policy:
        if tenant not in self._policies:
            self._counters.activate(tenant, self._waiting_tenants())
            if len(self._policies) >= POLICIES_KEPT:
                self._policies = {one: kept for one, kept in self._policies.items() if len(kept) or kept is self._last}
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
        """Add a request to its tenant's policy; one that comes back unfinished leaves its tenant's counter as it is."""
        tenant = self._share_of(request)
        policy = self._policy_of_tenant(tenant) if request.generated else self._activated(tenant)
        policy.add(request, now)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let the least served tenants assign: to one idle worker at a time, or as many joining rows as fit."""
        if not self._policies:
            return self._last.assign(workers, now)
        if len(self._policies) == 1:
            return self._ask(next(iter(self._policies)), workers, now)
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
        """Offer all workers to one tenant after the other; if none has a waiting request, to the last one.

        The last one may preempt rows. If a tenant's request still waits, better served tenants go ahead by at most its
        next batch.
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
        """Return the counter limit for other tenants, or infinity if no worker could take this tenant's requests."""
        largest_tokens = max((worker.memory.longest_row_tokens for worker in workers), default=0)
        batch = next(iter(self._policies[tenant].waiting(now)), None)
        if batch is None or batch.requests[0].prefill >= largest_tokens:
            return math.inf
        tokens = sum(map(service_tokens, batch.requests))
        return self._counters.served(tenant) + self._counters.weighted(tenant, tokens)

    def _ask(self, tenant: str, workers: Sequence[Worker], now: float) -> list[Assignment]:
        self._asked, self._last = tenant, self._policies[tenant]
        assignments = self._last.assign(workers, now)
        for assignment in assignments:
            tokens = sum(service_tokens(request, assignment.iteration_limit) for request in assignment.requests)
            self._counters.charge(tenant, tokens)
        return assignments

    def _waiting_tenants(self) -> list[str]:
        return [tenant for tenant, policy in self._policies.items() if len(policy)]

    def _next_tenants(self) -> list[str]:
        """Return the least served tenants; of equal ones the one asked last is last, so one that comes goes first."""
        in_order = self._counters.least_served(self._waiting_tenants())
        in_order.sort(key=lambda tenant: (self._counters.served(tenant), tenant == self._asked))
        return in_order[:TENANTS_TRIED]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give the requests of a batch that did not fit back to their tenants' policies.

        The policy that was in force before may have put requests of several tenants into one batch.
        """
        for tenant in sorted(set(map(self._share_of, assignment.requests))):
            requests = tuple(request for request in assignment.requests if self._share_of(request) == tenant)
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
        """Yield each tenant's batches in its policy's order; tenants take turns by their expected counters."""
        if len(self._policies) <= 1:
            yield from self._last.waiting(now)
            return
        queues = {tenant: iter(self._policies[tenant].waiting(now)) for tenant in self._waiting_tenants()}
        yield from self._counters.in_turn(queues, lambda batch: sum(map(service_tokens, batch.requests)))


# Shown requests as a share of all workers' memory. In `benchmarks.api tenants` shares are 61, 6 and 3 % off with 2, 1
# and 0.5, and serving takes 7, 14 and 25 % longer than with all shown: fewer requests make less similar batches.
SHOWN_AT_ONCE = 1.0


class OffloadShares(WrappingPolicy):
    """One policy, which is shown the requests of the least served tenants first."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._policy = make_policy()
        self.mode = self._policy.mode
        self._counters = VirtualTokenCounters()
        self._held: dict[str, ArrivalQueue] = {}  # by tenant, requests not shown to the policy
        self._shown_tokens = 0  # tokens of shown requests that are not assigned yet
        self._slice_tokens: int | None = None  # slice length of its last batches
        self._costs: ServingTime | None = None

    def __len__(self) -> int:
        return super().__len__() + sum(map(len, self._held.values()))

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy."""
        self._policy.out_of_memory(assignment, now)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait until it is its tenant's turn."""
        held = self._held.setdefault(request.account, ArrivalQueue())
        if not held:
            self._counters.activate(request.account, self._waiting_tenants())
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
        if not len(self._policy):  # all shown requests were assigned or discarded
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
        """Return when the policy wants to be asked again, also while it has not been shown the waiting requests."""
        return super().wake_at(now) if len(self) else None

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet by these weights from now on."""
        self._counters.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield the policy's waiting batches, then the requests not shown, tenants in turn."""
        yield from self._policy.waiting(now)
        for request in self._held_in_turn():
            yield waiting_batch((request,), self._costs, now, self._slice_tokens)

    def _held_in_turn(self) -> Iterator[Request]:
        queues = {tenant: iter(self._held[tenant]) for tenant in self._waiting_tenants()}
        return self._counters.in_turn(queues, lambda request: service_tokens(request, self._slice_tokens))
