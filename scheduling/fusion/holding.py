"""When those who could join a running batch do: together, once their waiting has cost what one join costs.

Every join stops the running rows for the fixed time of a prefill, however many join at once. To join at once wastes
that time on few; to wait wastes the joiners' time and the memory that is free for them. So they are held until the
seconds that they have waited, added up, are half of the seconds that the running rows would lose: rent, then buy.
Under steady arrivals that is the group size of the square-root rule (economic order quantity).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Held:
    """Joiners of one worker: seconds that they have waited in all, how many they are, and since when they are that."""

    waited_s: float
    count: int
    since: float

    def until(self, price_s: float) -> float:
        """When they will have waited enough if nobody else comes."""
        return self.since + (price_s - self.waited_s) / self.count


class Holding:
    """What is held for which worker."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self.wake_at: float | None = None

    def release(self, joiners: Mapping[str, int], price_s: Mapping[str, float], now: float) -> set[str]:
        """The workers whose joiners join now; `price_s` are the seconds that a join would cost each worker's rows."""
        before, self._held = self._held, {}
        released = set()
        self.wake_at = None
        for name, count in joiners.items():
            held = before.get(name, Held(0.0, 0, now))
            held = Held(held.waited_s + held.count * (now - held.since), count, now)
            until = held.until(price_s[name] / 2)
            if until <= now:
                released.add(name)
            else:
                self._held[name] = held
                self.wake_at = until if self.wake_at is None else min(self.wake_at, until)
        return released
