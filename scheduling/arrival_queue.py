"""A queue in order of arrival, from which requests may also be removed by id."""

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from scheduling.request import Request

Entry = TypeVar("Entry", bound=tuple[Any, ...])


def ascending(heap: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of a heap in ascending order, without changing it; the first k take O(k log k)."""
    candidates = [(heap[0], 0)] if heap else []
    while candidates:
        entry, place = heapq.heappop(candidates)
        yield entry
        for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
            heapq.heappush(candidates, (heap[child], child))


class ArrivalQueue:
    """Requests in order of (arrival, id); one that comes back gets the place that its arrival gives it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}
        self._heap: list[tuple[float, str]] = []  # entries of discarded requests stay until they come first

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """The requests in order; the queue must not change meanwhile. The first few cost little, however many wait."""
        last = ""
        for _, request_id in ascending(self._heap):
            if (
                request_id in self._waiting and request_id != last
            ):  # one that was discarded and came back has two entries
                last = request_id
                yield self._waiting[request_id]

    def add(self, request: Request) -> None:
        """Put a request into its place."""
        self._waiting[request.id] = request
        heapq.heappush(self._heap, (request.arrived_at, request.id))

    def discard(self, request_id: str) -> bool:
        """Remove a request; False if it does not wait here."""
        return self._waiting.pop(request_id, None) is not None

    def take(self, most: int) -> tuple[Request, ...]:
        """Remove and return the earliest, at most so many."""
        taken: list[Request] = []
        while len(taken) < most and (request := self.peek()):
            heapq.heappop(self._heap)
            taken.append(self._waiting.pop(request.id))
        return tuple(taken)

    def peek(self) -> Request | None:
        """The earliest, or None."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][1]] if self._heap else None
