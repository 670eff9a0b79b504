"""Shares of the fleet for tenants, under a policy that gives all that waits to its workers' queues at once, as SCLS.

Once there are several tenants, the policy sees no more at once than fills its workers: the requests of the
least served tenant, by its weight (VTC), are shown first. With one tenant it sees everything, as in its paper. Batches
mix tenants.

Starvation: a tenant of which something waits is the least served one as soon as the others have been served as much, by
their weights; its requests are shown in order of arrival.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from scheduling.arrival_queue import ArrivalQueue
from scheduling.batch_estimates import waiting_batch
from scheduling.costs import ServingTime
from scheduling.policies.virtual_token_counters import VirtualTokenCounters, tokens_of
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker
from scheduling.request import Request

# Of what all workers' memories hold together. In `benchmarks.api tenants` shares are 61, 6 and 3 % off with 2, 1 and
# 0.5, and all take 7, 14 and 25 % longer than with all shown: of fewer requests come batches of less similar ones.
SHOWN_AT_ONCE = 1.0


class OffloadShares(Policy):
    """One policy, which is shown the tenants' requests by what each tenant has been served."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._policy = make_policy()
        self.mode = self._policy.mode
        self._counters = VirtualTokenCounters()
        self._held: dict[str, ArrivalQueue] = {}  # by tenant, what the policy has not been shown
        self._shown_tokens = 0  # of what it has not assigned yet
        self._slice_tokens: int | None = None  # of its last batches
        self._costs: ServingTime | None = None

    def __len__(self) -> int:
        return len(self._policy) + sum(map(len, self._held.values()))

    def add(self, request: Request, now: float) -> None:
        """Let a request wait until it is its tenant's turn."""
        held = self._held.setdefault(request.tenant, ArrivalQueue())
        if not held:
            self._counters.activate(request.tenant, self._waiting_tenants())
        held.add(request)

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out; False if it does not wait here."""
        return self._policy.discard(request_id) or any(held.discard(request_id) for held in self._held.values())

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """What the policy assigns of what it is shown."""
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
            tokens = tokens_of(request, self._slice_tokens)
            self._shown_tokens += tokens
            self._counters.charge(tenant, tokens)
            self._policy.add(request, now)
            if self._held[tenant]:
                heapq.heappush(turns, (self._counters.served(tenant), tenant))

    def _waiting_tenants(self) -> list[str]:
        return [tenant for tenant, held in self._held.items() if held]

    def finished(self, assignment: Assignment, now: float) -> None:
        """Take note that a batch has ended on its worker."""
        self._policy.finished(assignment, now)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Take back a batch that did not fit."""
        self._policy.out_of_memory(assignment, now)

    def wake_at(self, now: float) -> float | None:
        """When the policy wants to be asked again, whether it has been shown what waits or not."""
        return self._policy.wake_at(now) if len(self) else None

    def set_rank_correlation(self, tau: float | None) -> None:
        """Take note of Kendall's tau of recent predictions and answers."""
        self._policy.set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet by these weights from now on."""
        self._counters.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """What the policy has been shown, then the tenants' requests in turn."""
        yield from self._policy.waiting(now)
        for request in self._held_in_turn():
            yield waiting_batch((request,), self._costs, now, self._slice_tokens)

    def _held_in_turn(self) -> Iterator[Request]:
        queues = {tenant: iter(self._held[tenant]) for tenant in self._waiting_tenants()}
        turns = [(self._counters.served(tenant), tenant) for tenant in queues]
        heapq.heapify(turns)
        while turns:
            served, tenant = heapq.heappop(turns)
            if request := next(queues[tenant], None):
                yield request
                tokens = tokens_of(request, self._slice_tokens)
                heapq.heappush(turns, (served + self._counters.weighted(tenant, tokens), tenant))
