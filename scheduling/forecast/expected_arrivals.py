"""The requests that are expected to come: as many a second as lately, with lengths like those seen lately."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from scheduling.policies.drawn_lengths import van_der_corput
from scheduling.request import Request

# The rate is that of so many seconds. Longer ones take a burst that has ended for a load that goes on, shorter ones
# count too few arrivals. Not tuned.
WINDOW_S = 15.0
KEPT = 256  # requests whose lengths are drawn from; not tuned


class RecentArrivals:
    """The requests that arrived last; instants of the planner's clock, seconds."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque(maxlen=KEPT)
        self._instants: deque[float] = deque()
        self._since: float | None = None  # when the first one was seen

    def see(self, request: Request, now: float) -> None:
        """Count a new request; one that comes back is none."""
        if request.generated:
            return
        self._since = now if self._since is None else self._since
        self._requests.append(request)
        self._instants.append(now)

    def rate(self, now: float) -> float:
        """Arrivals a second."""
        while self._instants and self._instants[0] < now - WINDOW_S:
            self._instants.popleft()
        if self._since is None or not self._instants:
            return 0.0
        return len(self._instants) / min(WINDOW_S, max(1.0, now - self._since))

    def expected(self, now: float) -> Iterator[Request]:
        """Requests to come, evenly spaced, without end; none if none came lately."""
        rate, recent = self.rate(now), list(self._requests)
        number = 0
        while rate > 0:
            number += 1
            like = recent[int(van_der_corput(number) * len(recent))]
            at = now + (number - 0.5) / rate
            yield replace(like, id=f"expected {number}", arrived_at=at, deadline_at=None, outgrew_tokens=0)
