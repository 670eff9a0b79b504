"""The waiting room: each tenant's requests in lanes, who has been served how much, and how much waits in all."""

from collections.abc import Iterator

from scheduling.policies.fusion.fair_shares import VirtualTokenCounters
from scheduling.policies.fusion.length_bands import Backlog
from scheduling.policies.fusion.length_buckets import LengthBuckets, WaitingRequest


class TenantQueues:
    """Requests that wait, by tenant."""

    def __init__(self) -> None:
        self.lanes: dict[str, LengthBuckets] = {}  # of tenants of whom something waits
        self.shares = VirtualTokenCounters()
        self.backlog = Backlog()
        self._tenant_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tenant_of

    def __iter__(self) -> Iterator[WaitingRequest]:
        for lanes in self.lanes.values():
            yield from lanes

    def put(self, waiting: WaitingRequest) -> None:
        """Let a request wait."""
        request = waiting.request
        if request.tenant not in self.lanes:
            self.shares.arrives(request.tenant, list(self.lanes))
            self.lanes[request.tenant] = LengthBuckets()
        self.lanes[request.tenant].add(waiting)
        self._tenant_of[request.id] = request.tenant
        self.backlog.add(request)

    def take(self, request_id: str) -> WaitingRequest:
        """Take a request out."""
        tenant = self._tenant_of.pop(request_id)
        waiting = self.lanes[tenant].take(request_id)
        if not len(self.lanes[tenant]):
            del self.lanes[tenant]
        self.backlog.remove(waiting.request)
        return waiting

    def least_served(self, most: int) -> list[str]:
        """The tenants who have been served least, of whom something waits."""
        return sorted(self.lanes, key=lambda tenant: (self.shares.served_s(tenant), tenant))[:most]

    def mean_remaining(self) -> float:
        """Tokens that a request has to generate, on average."""
        rows, _, tokens, _ = self.backlog.total()
        return max(1.0, tokens / max(1.0, rows))
