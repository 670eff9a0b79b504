"""When those who could join a running batch do: together, once their waiting has cost what one join costs.

Every join stops the running rows for the fixed time of a prefill, however many join at once. To join at once wastes
that time on few; to wait wastes the joiners' time and the memory that is free for them. So they are held until the
seconds that they have waited, added up, are half of the seconds that the running rows would lose: rent, then buy.
Under steady arrivals that is the group size of the square-root rule (economic order quantity).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from scheduling.policies.fusion.length_buckets import WaitingRequest


@dataclass(slots=True)
class JoinGroup:
    """Joiners of one worker, and the seconds that they had waited in all at an instant."""

    joiners: dict[str, WaitingRequest] = field(default_factory=dict)
    waited_s: float = 0.0
    at: float = 0.0

    def wait_until(self, now: float) -> None:
        """Count what they have waited up to now."""
        self.waited_s += len(self.joiners) * (now - self.at)
        self.at = now

    def enough_at(self, price_s: float) -> float:
        """When they will have waited half of that price, if nobody else comes."""
        return self.at + (price_s / 2 - self.waited_s) / len(self.joiners)


class JoinBuffer:
    """Who is held for which worker."""

    def __init__(self) -> None:
        self.groups: dict[str, JoinGroup] = {}
        self.wake_at: float | None = None

    def __len__(self) -> int:
        return sum(len(group.joiners) for group in self.groups.values())

    def __iter__(self) -> Iterator[tuple[str, WaitingRequest]]:
        """Workers, and those who are held for them."""
        for worker, group in self.groups.items():
            for waiting in group.joiners.values():
                yield worker, waiting

    def hold(self, worker: str, waiting: WaitingRequest, now: float) -> None:
        """Let a request wait for company on its way to a worker."""
        group = self.groups.setdefault(worker, JoinGroup(at=now))
        group.wait_until(now)
        group.joiners[waiting.request.id] = waiting

    def let_go(self, request_id: str) -> WaitingRequest | None:
        """Hold a request no more; None if it is not held."""
        for worker, group in self.groups.items():
            if waiting := group.joiners.pop(request_id, None):
                if not group.joiners:
                    del self.groups[worker]
                return waiting
        return None

    def release(self, price_s: Mapping[str, float], now: float) -> dict[str, list[WaitingRequest]]:
        """The groups that join now, by worker; `price_s` are the seconds that a join costs each worker's rows."""
        released = {}
        self.wake_at = None
        for worker, group in list(self.groups.items()):
            group.wait_until(now)
            enough_at = group.enough_at(price_s[worker])
            if enough_at <= now:
                released[worker] = list(self.groups.pop(worker).joiners.values())
            else:
                self.wake_at = enough_at if self.wake_at is None else min(self.wake_at, enough_at)
        return released
