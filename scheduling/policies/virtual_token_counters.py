"""Counts the service of each tenant, relative to its weight: the tenant with the least counter is next (VTC).

A counter grows by its tenant's service, divided by the tenant's weight, so that equal counters mean shares in
proportion to the weights. A tenant that comes back after a pause starts from the least counter of the tenants that
wait, or from that of the tenant served last if none waits: being idle earns no credit. So the counters of two tenants,
both of which always have a request waiting that fits, never differ by more than their largest single service.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from scheduling.request import PREFERRED, PRIORITY_WEIGHT, Request

Item = TypeVar("Item")


class VirtualTokenCounters:
    """The counters, in tokens; `service_tokens` of a request are charged when it is assigned."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._last_served = ""
        self._weights: Mapping[str, float] = {}

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Charge by these weights from now on; other tenants have weight 1."""
        self._weights = weights

    def activate(
        self, tenant: str, others: Iterable[str], unserved: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Add a tenant whose first request arrived; `others` are the tenants with waiting requests.

        `unserved` has the tokens that the others were charged for and have not been served yet.
        """
        last = self._served.get(self._last_served, 0.0)
        served = (self._served[other] - self.weighted(other, unserved.get(other, 0.0)) for other in others)
        floor = min(served, default=last)
        self._served[tenant] = max(self._served.get(tenant, 0.0), floor)

    def keep(self, tenants: Collection[str]) -> None:
        """Drop the counters of all other tenants; one that comes back starts anew."""
        self._served = {tenant: served for tenant, served in self._served.items() if tenant in tenants}

    def weight_of(self, tenant: str) -> float:
        """Return the weight of a tenant, or of its account for the tier `priority`."""
        times = PRIORITY_WEIGHT if tenant.endswith(PREFERRED) else 1.0
        return times * self._weights.get(tenant.removesuffix(PREFERRED), 1.0)

    def weighted(self, tenant: str, service: float) -> float:
        """Return by how much this service, in tokens, raises the tenant's counter."""
        return service / self.weight_of(tenant)

    def charge(self, tenant: str, service: float) -> None:
        """Add this service, in tokens, to the tenant's counter."""
        self._served[tenant] += self.weighted(tenant, service)
        self._last_served = tenant

    def served(self, tenant: str) -> float:
        """Return the tenant's counter; raise KeyError if the tenant was never activated."""
        return self._served[tenant]

    def least_served(self, tenants: Iterable[str]) -> list[str]:
        """Return these tenants, the least served first, equal ones by name."""
        return sorted(tenants, key=lambda tenant: (self._served[tenant], tenant))

    def in_turn(self, queues: Mapping[str, Iterator[Item]], tokens: Callable[[Item], float]) -> Iterator[Item]:
        """Yield the items of all tenants' queues as they would be served; `tokens` returns an item's service."""
        turns = [(self._served[tenant], tenant) for tenant in queues]
        heapq.heapify(turns)
        while turns:
            served, tenant = heapq.heappop(turns)
            if (item := next(queues[tenant], None)) is not None:
                yield item
                heapq.heappush(turns, (served + self.weighted(tenant, tokens(item)), tenant))


def service_tokens(request: Request, iteration_limit: int | None = None) -> int:
    """Return the tokens to charge for a request now: its prefill, and those that it should generate.

    Without an iteration limit all of the latter are charged at once, and not again when a preempted request returns.
    """
    if iteration_limit is None:
        return request.prefill + (0 if request.generated else request.remaining)
    return request.prefill + min(request.remaining, iteration_limit)
