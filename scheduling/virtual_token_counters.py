"""Counts the service of each tenant, relative to its weight: the tenant with the least counter is next (VTC).

A counter grows by its tenant's service, divided by the tenant's weight, so that equal counters mean shares in
proportion to the weights. A tenant that comes back after a pause starts from the least counter of the tenants that
wait, or from that of the tenant served last if none waits, so that being idle earns no credit. So the counters of two
tenants that always have a fitting request waiting never differ by more than their largest single service.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from scheduling.request import Request

Item = TypeVar("Item")
Owner = TypeVar("Owner", bound=Any)  # the type of those whose service is counted; it orders equally served ones
# A tenant's requests of the tier `priority` have this many times its weight, beside its other requests and those of all
# tenants. A larger value puts them further ahead; the tenant's quota bounds what that costs others. Not tuned.
PRIORITY_WEIGHT = 10.0


class Account(NamedTuple):
    """The account to which a request's service is added; a tenant has a separate one for the tier `priority`."""

    tenant: str
    preferred: bool = False


def account_of(request: Request) -> Account:
    """Return the account that a request's service is charged to."""
    return Account(request.tenant, request.tier == "priority")


class VirtualTokenCounters(Generic[Owner]):
    """The counters, in tokens; a request's `service_tokens` are charged when it is assigned."""

    def __init__(self) -> None:
        self._served: dict[Owner, float] = {}
        self._last_served: Owner | None = None
        self._weights: Mapping[str, float] = {}

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Charge by these weights from now on; other tenants have weight 1."""
        self._weights = weights

    def activate(
        self, tenant: Owner, others: Iterable[Owner], unserved: Mapping[Owner, float] = MappingProxyType({})
    ) -> None:
        """Add a tenant whose first request arrived; `others` are the tenants that have waiting requests.

        `unserved` has the tokens for which the others were charged, but which have not been served yet.
        """
        last = 0.0 if self._last_served is None else self._served.get(self._last_served, 0.0)
        served = (self._served[other] - self.weighted(other, unserved.get(other, 0.0)) for other in others)
        floor = min(served, default=last)
        self._served[tenant] = max(self._served.get(tenant, 0.0), floor)

    def keep(self, tenants: Collection[Owner]) -> None:
        """Drop the counters of all other tenants; a tenant that comes back starts anew."""
        self._served = {tenant: served for tenant, served in self._served.items() if tenant in tenants}

    def weight_of(self, tenant: Owner) -> float:
        """Return the weight of a tenant."""
        return self._weights.get(tenant, 1.0)

    def weighted(self, tenant: Owner, service: float) -> float:
        """Return by how much this service, in tokens, raises the tenant's counter."""
        return service / self.weight_of(tenant)

    def charge(self, tenant: Owner, service: float) -> None:
        """Add this service, in tokens, to the tenant's counter."""
        self._served[tenant] += self.weighted(tenant, service)
        self._last_served = tenant

    def served(self, tenant: Owner) -> float:
        """Return the tenant's counter; raise KeyError if the tenant was never activated."""
        return self._served[tenant]

    def least_served(self, tenants: Iterable[Owner]) -> list[Owner]:
        """Return these tenants, the least served first, equal ones by name."""
        return sorted(tenants, key=lambda tenant: (self._served[tenant], tenant))

    def in_turn(self, queues: Mapping[Owner, Iterator[Item]], tokens: Callable[[Item], float]) -> Iterator[Item]:
        """Yield the items of all tenants' queues as they would be served; `tokens` returns an item's service."""
        turns = [(self._served[tenant], tenant) for tenant in queues]
        heapq.heapify(turns)
        while turns:
            served, tenant = heapq.heappop(turns)
            if (item := next(queues[tenant], None)) is not None:
                yield item
                heapq.heappush(turns, (served + self.weighted(tenant, tokens(item)), tenant))


class TenantCounters(VirtualTokenCounters[Account]):
    """The counters of tenants' accounts; the weights that are set are the tenants'."""

    def weight_of(self, tenant: Account) -> float:
        """Return the weight of an account."""
        return (PRIORITY_WEIGHT if tenant.preferred else 1.0) * self._weights.get(tenant.tenant, 1.0)


def service_tokens(request: Request, iteration_limit: int | None = None) -> int:
    """Return the tokens to charge for a request now: its prefill, and the tokens that it should generate.

    Without an iteration limit all tokens to generate are charged at once, but not again when a preempted one returns.
    """
    if iteration_limit is None:
        return request.prefill + (0 if request.generated else request.remaining)
    return request.prefill + min(request.remaining, iteration_limit)
