"""Events in virtual time: items at known instants, the workers' next events, the policy's next decision."""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

# Instants closer than this count as equal. It is well above the rounding error of sums of seconds and of Unix times
# (2.4e-7), and well below an iteration, which takes at least a millisecond on every published engine.
ROUNDING_S = 1e-6


class Timetable(Generic[T]):
    """Items whose instants are known from the start."""

    def __init__(self, entries: Iterable[tuple[float, T]]) -> None:
        """Take entries that are sorted by their instants."""
        self._entries = deque(entries)

    def next_at(self) -> float:
        """Return the instant of the next item, or infinity if there is none."""
        return self._entries[0][0] if self._entries else math.inf

    def pop_due(self, now: float) -> Iterator[T]:
        """Remove the items whose instant has come, in order."""
        while self.next_at() <= now:
            yield self._entries.popleft()[1]


class WorkerEvents:
    """The next event of each worker, in a heap; a worker's earlier entry is outdated once it is scheduled again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []  # instant, number of the entry, worker
        self._current: dict[str, int] = {}  # the number of each worker's valid entry
        self._entries = 0

    def schedule(self, worker: str, at: float) -> None:
        """Replace a worker's next event; infinity stands for no event."""
        self._entries += 1
        self._current[worker] = self._entries
        if at < math.inf:
            heapq.heappush(self._heap, (at, self._entries, worker))

    def cancel(self, worker: str) -> None:
        """Forget a worker that has left."""
        del self._current[worker]

    def next_at(self) -> float:
        """Return the instant of the next event, or infinity if there is none."""
        while self._heap and self._current.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def pop_due(self, now: float) -> Iterator[str]:
        """Remove the due events in order, including those scheduled meanwhile; yield their workers."""
        while self.next_at() <= now:
            yield heapq.heappop(self._heap)[2]


class DecisionTimer:
    """The instant of the policy's next decision; if `tick_s` is not 0, at its multiples only, as a planner decides."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self.next_at = math.inf

    def request(self, at: float) -> None:
        """Schedule a decision at this instant, or at the first tick after it."""
        tick_at = math.ceil(at / self._tick_s - ROUNDING_S) * self._tick_s if self._tick_s else at
        self.next_at = min(self.next_at, max(tick_at, at))

    def pop_due(self, now: float) -> bool:
        """Return whether a decision is due; if so, forget all requested instants."""
        if self.next_at > now:
            return False
        self.next_at = math.inf
        return True
