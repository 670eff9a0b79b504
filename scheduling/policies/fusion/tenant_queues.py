"""The requests that wait, by tenant, and which tenant is served next: the one served least for its weight."""

from collections.abc import Iterator

from scheduling.policies.fusion.length_bands import Backlog
from scheduling.policies.fusion.length_buckets import LengthBuckets, WaitingRequest
from scheduling.policies.virtual_token_counters import VirtualTokenCounters


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
        return self.counters.least_served(self.by_tenant)[:count]

    def mean_remaining(self) -> float:
        """Mean of the predicted remaining tokens of the waiting requests, at least 1."""
        rows, _, tokens, _ = self.backlog.total()
        return max(1.0, tokens / max(1.0, rows))
