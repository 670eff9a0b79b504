"""How much each tenant has been served, relative to its weight: the tenant with the least counter is next (VTC).

A counter grows by what its tenant is served, divided by the tenant's weight, so that counters that stay close together
mean shares like the weights. A tenant that comes back after a pause starts from the least counter of the tenants that
wait, or from that of the tenant served last if none waits: being idle earns no credit. So the counters of two tenants,
both of which always have a request waiting that fits, never differ by more than their largest single service.
"""

from collections.abc import Iterable, Mapping

from scheduling.request import Request


class VirtualTokenCounters:
    """The counters, in tokens; what `tokens_of` counts is charged when a request is assigned."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._last_served = ""
        self._weights: Mapping[str, float] = {}

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Charge by these weights from now on; a tenant that is not named has weight 1."""
        self._weights = weights

    def activate(self, tenant: str, others: Iterable[str]) -> None:
        """A tenant of which nothing waited now has a request waiting; `others` are the tenants that had one before."""
        last = self._served.get(self._last_served, 0.0)
        floor = min((self._served[other] for other in others), default=last)
        self._served[tenant] = max(self._served.get(tenant, 0.0), floor)

    def weighted(self, tenant: str, service: float) -> float:
        """By how much so much service raises the tenant's counter."""
        return service / self._weights.get(tenant, 1.0)

    def charge(self, tenant: str, service: float) -> None:
        """Add what a tenant is served."""
        self._served[tenant] += self.weighted(tenant, service)
        self._last_served = tenant

    def served(self, tenant: str) -> float:
        """The tenant's counter; KeyError if it was never activated."""
        return self._served[tenant]

    def least_served(self, tenants: Iterable[str]) -> list[str]:
        """These tenants, the least served first, equal ones by name."""
        return sorted(tenants, key=lambda tenant: (self._served[tenant], tenant))


def tokens_of(request: Request, iteration_limit: int | None = None) -> int:
    """Tokens that are computed for a request now: its prefill, and those that it should generate."""
    remaining = request.remaining if iteration_limit is None else min(request.remaining, iteration_limit)
    return request.prefill + remaining
