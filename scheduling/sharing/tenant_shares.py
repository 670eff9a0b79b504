"""Shares the fleet among tenants, under a policy that ignores tenants; `fusion` weighs tenants in its own decisions.

A tenant's requests of the service tier `priority` count as those of another tenant, with a larger weight.

`TenantShares` gives each tenant a policy of its own. The tenant served least for its weight (VTC) chooses first; the
next tenant gets the remaining workers, so no worker idles while a request waits. Batches never mix tenants. With one
tenant this is the policy itself. Starvation: the policy's guarantee holds for each tenant separately, within its share.
Other tenants' shorter rows cannot keep out a row too long for the free memory: they go ahead by at most a batch.

`OffloadShares` is for policies of mode `queue` such as SCLS, which assign all waiting requests to workers' queues at
once. With several tenants, the policy sees only as many requests as fill its workers, the least served tenant's first.
With one tenant it sees all requests, as in its paper. Batches mix tenants. No tenant starves: a tenant with waiting
requests is the least served one as soon as the others have been served as much, by their weights; its requests are
shown in order of arrival.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scheduling.arrival_queue import ArrivalQueue
from scheduling.costs import ServingTime
from scheduling.outer_policy import OuterPolicy, PolicyOfEach
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, waiting_batch
from scheduling.request import Request
from scheduling.virtual_token_counters import Account, TenantCounters, account_of, service_tokens

# At most this many of the least served tenants are asked until one has work for the free workers. A tenant that is not
# asked may have a fitting request, but asking takes a decision. The same number as in fusion; not tuned.
TENANTS_TRIED = 8
# If there are more policies than this, the policies of tenants without a waiting request are dropped, together with
# what they have learned of lengths. Not tuned.
POLICIES_KEPT = 64


class TenantShares(PolicyOfEach[Account, Policy]):
    """One policy for each tenant, all of one kind, and counters of each tenant's service."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        super().__init__(make_policy)
        self._counters = TenantCounters()
        self._asked: Account | None = None  # the tenant that was asked last
        self._last = make_policy()  # the policy of this tenant

    def policy_for(self, tenant: Account) -> Policy:
        """Return the policy of a tenant; make it at the first call."""
        if tenant not in self.policies:
            self._counters.activate(tenant, self._waiting_tenants())
            if len(self.policies) >= POLICIES_KEPT:
                self.policies = {one: kept for one, kept in self.policies.items() if len(kept) or kept is self._last}
            if not self.policies:
                self._last.set_rank_correlation(self.rank_correlation)
                self.policies[tenant] = self._last
        return super().policy_for(tenant)

    def _activated(self, tenant: Account) -> Policy:
        """Return the tenant's policy, to which a request is about to be added."""
        policy = self.policy_for(tenant)
        if len(self.policies) > 1 and not len(policy):
            self._counters.activate(tenant, self._waiting_tenants())
        return policy

    def add(self, request: Request, now: float) -> None:
        """Add a request to its tenant's policy; a request that comes back unfinished does not change the counter."""
        tenant = account_of(request)
        policy = self.policy_for(tenant) if request.generated else self._activated(tenant)
        policy.add(request, now)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let the least served tenants assign: in mode `batch` to one idle worker at a time, else rows that fit."""
        if not self.policies:
            return self._last.assign(workers, now)
        if len(self.policies) == 1:
            return self._ask(next(iter(self.policies)), workers, now)
        if self.mode == "batch":
            return list(self._batches(workers, now))
        return list(self._joins({worker.name: worker for worker in workers}, now))

    def _batches(self, workers: Sequence[Worker], now: float) -> Iterator[Assignment]:
        """Offer the tenants one idle worker at a time, as if all other workers were busy."""
        busy = [replace(worker, queued=worker.queued + 1) for worker in workers]
        for index, worker in enumerate(workers):
            if worker.idle:
                seen = [*busy[:index], worker, *busy[index + 1 :]]
                for tenant in self._next_tenants():
                    if assignments := self._ask(tenant, seen, now):
                        yield from assignments
                        break

    def _joins(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        """Offer all workers to one tenant after the other; if no tenant has a waiting request, to the one asked last.

        That tenant's policy may preempt rows. If a tenant's request still waits, better served tenants go ahead by at
        most its next batch.
        """
        most = math.inf
        for tenant in self._next_tenants() or [next(name for name, one in self.policies.items() if one is self._last)]:
            if self._counters.served(tenant) > most:
                return
            for assignment in self._ask(tenant, list(workers.values()), now):
                workers[assignment.worker] = workers[assignment.worker].given(assignment, now)
                yield assignment
            most = min(most, self._limit_for_others(tenant, workers.values(), now))

    def _limit_for_others(self, tenant: Account, workers: Iterable[Worker], now: float) -> float:
        """Return the counter limit for other tenants, or infinity if no worker could take this tenant's requests."""
        largest_tokens = max((worker.memory.longest_row_tokens for worker in workers), default=0)
        batch = next(iter(self.policies[tenant].waiting(now)), None)
        if batch is None or batch.requests[0].prefill >= largest_tokens:
            return math.inf
        tokens = sum(map(service_tokens, batch.requests))
        return self._counters.served(tenant) + self._counters.weighted(tenant, tokens)

    def _ask(self, tenant: Account, workers: Sequence[Worker], now: float) -> list[Assignment]:
        self._asked, self._last = tenant, self.policies[tenant]
        assignments = self._last.assign(workers, now)
        for assignment in assignments:
            tokens = sum(service_tokens(request, assignment.iteration_limit) for request in assignment.requests)
            self._counters.charge(tenant, tokens)
        return assignments

    def _waiting_tenants(self) -> list[Account]:
        return [tenant for tenant, policy in self.policies.items() if len(policy)]

    def _next_tenants(self) -> list[Account]:
        """Return the tenants, the least served first; among equals the one asked last comes last, after new ones."""
        in_order = self._counters.least_served(self._waiting_tenants())
        in_order.sort(key=lambda tenant: (self._counters.served(tenant), tenant == self._asked))
        return in_order[:TENANTS_TRIED]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give the requests of a batch that did not fit back to their tenants' policies.

        Another policy that was in force before may have put requests of several tenants into one batch.
        """
        for tenant in sorted(set(map(account_of, assignment.requests))):
            requests = tuple(request for request in assignment.requests if account_of(request) == tenant)
            policy = self._activated(tenant)
            if len(requests) == 1 < len(assignment.requests):
                policy.add(requests[0], now)
            else:
                policy.out_of_memory(replace(assignment, requests=requests), now)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet by these weights from now on; the inner policies need none."""
        self._counters.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield each tenant's batches in the order of its policy; tenants take turns by their expected counters."""
        if len(self.policies) <= 1:
            yield from self._last.waiting(now)
            return
        queues = {tenant: iter(self.policies[tenant].waiting(now)) for tenant in self._waiting_tenants()}
        yield from self._counters.in_turn(queues, lambda batch: sum(map(service_tokens, batch.requests)))


# Shown requests may fill this share of all workers' memory. In `benchmarks.api tenants` shares are 61, 6 and 3 % off
# with 2, 1 and 0.5, and serving takes 7, 14 and 25 % longer than with all shown: fewer make less similar batches.
SHOWN_AT_ONCE = 1.0


class OffloadShares(OuterPolicy):
    """One policy, to which the requests of the least served tenants are shown first."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._policy = make_policy()
        self.mode = self._policy.mode
        self._counters = TenantCounters()
        self._held: dict[Account, ArrivalQueue] = {}  # the requests not yet shown to the policy, by tenant
        self._shown_tokens = 0  # the tokens of shown requests since the policy was last without any
        self._slice_tokens: int | None = None  # the slice length of the policy's last batches
        self._costs: ServingTime | None = None

    def __len__(self) -> int:
        return super().__len__() + sum(map(len, self._held.values()))

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy."""
        self._policy.out_of_memory(assignment, now)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait until its tenant's turn comes."""
        tenant = account_of(request)
        held = self._held.setdefault(tenant, ArrivalQueue())
        if not held:
            self._counters.activate(tenant, self._waiting_tenants())
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

    def _waiting_tenants(self) -> list[Account]:
        return [tenant for tenant, held in self._held.items() if held]

    def wake_at(self, now: float) -> float | None:
        """Return when the policy wants to be asked again, even if it has not yet been shown any waiting request."""
        return super().wake_at(now) if len(self) else None

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet by these weights from now on."""
        self._counters.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield the policy's waiting batches, then the requests that are not shown yet, tenants in turn."""
        yield from self._policy.waiting(now)
        for request in self._held_in_turn():
            yield waiting_batch((request,), self._costs, now, self._slice_tokens)

    def _held_in_turn(self) -> Iterator[Request]:
        queues = {tenant: iter(self._held[tenant]) for tenant in self._waiting_tenants()}
        return self._counters.in_turn(queues, lambda request: service_tokens(request, self._slice_tokens))
