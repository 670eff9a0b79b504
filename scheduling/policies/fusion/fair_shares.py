"""Fair shares among tenants: a virtual token counter each, and the least served goes first (VTC).

A counter grows by the seconds of a worker that its tenant's requests are predicted to take. A tenant that comes back
after a pause starts from the least counter of those who wait, or from that of the tenant served last: idle time earns
no credit. So two tenants of whom something that fits waits all the while never differ by more than their largest
request.
"""

from collections.abc import Iterable


class VirtualTokenCounters:
    """What each tenant has been served."""

    def __init__(self) -> None:
        self._served_s: dict[str, float] = {}
        self._last = ""

    def arrives(self, tenant: str, waiting: Iterable[str]) -> None:
        """A tenant of whom nothing waited has a request now; `waiting` are the others of whom something does."""
        last_s = self._served_s.get(self._last, 0.0)
        floor_s = min((self._served_s[other] for other in waiting), default=last_s)
        self._served_s[tenant] = max(self._served_s.get(tenant, 0.0), floor_s)

    def charge(self, tenant: str, seconds: float) -> None:
        """Count what a tenant gets, or gives back."""
        self._served_s[tenant] += seconds
        self._last = tenant

    def served_s(self, tenant: str) -> float:
        """What it has been served, or counts as served."""
        return self._served_s[tenant]
