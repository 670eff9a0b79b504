"""The requests that wait, by tenant, and which tenant is served next: the one served least (VTC).

Each tenant has a virtual token counter, which grows by the seconds of the fleet that its requests are predicted to
take. A tenant that comes back after a pause starts from the least counter of the tenants that wait, or from that of the
tenant served last if none waits: being idle earns no credit. So the counters of two tenants, both of which always have
a request waiting that fits, never differ by more than their largest request.
"""

from collections.abc import Iterable, Iterator

from scheduling.policies.fusion.length_bands import Backlog
from scheduling.policies.fusion.length_buckets import LengthBuckets, WaitingRequest


class VirtualTokenCounters:
    """How much each tenant has been served, in seconds of the fleet."""

    def __init__(self) -> None:
        self._served_s: dict[str, float] = {}
        self._last_served = ""

    def activate(self, tenant: str, others: Iterable[str]) -> None:
        """A tenant of which nothing waited now has a request waiting; `others` are the tenants that had one before."""
        last_s = self._served_s.get(self._last_served, 0.0)
        floor_s = min((self._served_s[other] for other in others), default=last_s)
        self._served_s[tenant] = max(self._served_s.get(tenant, 0.0), floor_s)

    def charge(self, tenant: str, seconds: float) -> None:
        """Add what a tenant is served."""
        self._served_s[tenant] += seconds
        self._last_served = tenant

    def served_s(self, tenant: str) -> float:
        """The tenant's counter; KeyError if it was never activated."""
        return self._served_s[tenant]


class TenantQueues:
    """Each tenant's waiting requests, the tenants' counters, and the work that waits in all."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, LengthBuckets] = {}  # only tenants that have a request waiting
        self.counters = VirtualTokenCounters()
        self.backlog = Backlog()
        self._tenant_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tenant_of

    def __iter__(self) -> Iterator[WaitingRequest]:
        for buckets in self.by_tenant.values():
            yield from buckets

    def add(self, waiting: WaitingRequest) -> None:
        """Put a request into its tenant's queue."""
        request = waiting.request
        if request.tenant not in self.by_tenant:
            self.counters.activate(request.tenant, list(self.by_tenant))
            self.by_tenant[request.tenant] = LengthBuckets()
        self.by_tenant[request.tenant].add(waiting)
        self._tenant_of[request.id] = request.tenant
        self.backlog.add(request)

    def take(self, request_id: str) -> WaitingRequest:
        """Take a request out; KeyError if it does not wait here."""
        tenant = self._tenant_of.pop(request_id)
        waiting = self.by_tenant[tenant].take(request_id)
        if not len(self.by_tenant[tenant]):
            del self.by_tenant[tenant]
        self.backlog.remove(waiting.request)
        return waiting

    def is_first(self, request_id: str) -> bool:
        """Whether this request waits here and is the first of its bucket."""
        tenant = self._tenant_of.get(request_id)
        return tenant is not None and self.by_tenant[tenant].column_of(request_id) is not None

    def least_served(self, count: int) -> list[str]:
        """Up to `count` tenants that have a request waiting, the least served first."""
        return sorted(self.by_tenant, key=lambda tenant: (self.counters.served_s(tenant), tenant))[:count]

    def mean_remaining(self) -> float:
        """Mean of the predicted remaining tokens of the waiting requests, at least 1."""
        rows, _, tokens, _ = self.backlog.total()
        return max(1.0, tokens / max(1.0, rows))
