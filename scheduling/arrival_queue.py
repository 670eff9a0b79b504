"""A waiting room in order of arrival, from which requests may also be taken by id."""

import heapq
from collections.abc import Iterator, Sequence
from typing import TypeVar

from scheduling.request import Request

Entry = TypeVar("Entry", tuple[float, str], tuple[float, float, str])


def ascending(heap: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of a heap in order, without taking them out: each makes way for the two below it."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        entry, place = heapq.heappop(ahead)
        yield entry
        for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
            heapq.heappush(ahead, (heap[below], below))


class ArrivalQueue:
    """Requests in order of (arrival, id); one that comes back keeps the place that its arrival gives it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}
        self._heap: list[tuple[float, str]] = []  # entries of discarded requests stay until they surface

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """In order, while nothing changes; the first few of a hundred thousand cost no more than they."""
        last = ""
        for _, request_id in ascending(self._heap):
            if request_id in self._waiting and request_id != last:  # who was discarded and came back is there twice
                last = request_id
                yield self._waiting[request_id]

    def add(self, request: Request) -> None:
        """Let a request wait."""
        self._waiting[request.id] = request
        heapq.heappush(self._heap, (request.arrived_at, request.id))

    def discard(self, request_id: str) -> bool:
        """Take one out; False if it does not wait here."""
        return self._waiting.pop(request_id, None) is not None

    def take(self, most: int) -> tuple[Request, ...]:
        """Take out the earliest, at most so many."""
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
