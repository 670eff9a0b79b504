"""A queue in order of arrival or of another key, from which requests can be removed by id."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from scheduling.request import Request

Entry = TypeVar("Entry", bound=tuple[Any, ...])
FEWEST_SORTED = 64  # a heap with fewer outdated entries is left as it is; not tuned


def ascending(heap: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries of a heap in ascending order without changing it; the first k take O(k log k)."""
    candidates = [(heap[0], 0)] if heap else []
    while candidates:
        entry, place = heapq.heappop(candidates)
        yield entry
        for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
            heapq.heappush(candidates, (heap[child], child))


def by_arrival(request: Request) -> tuple[float, ...]:
    """Return the sort key of first come, first served."""
    return (request.arrived_at,)


class ArrivalQueue:
    """Requests in order of (key, id). By default the key is the arrival: a request that returns keeps its place."""

    def __init__(self, key: Callable[[Request], tuple[float, ...]] = by_arrival) -> None:
        self._key = key
        self._waiting: dict[str, Request] = {}
        # Entries of discarded requests stay in the heap until they come first, or until they are more than half of it.
        self._heap: list[tuple[tuple[float, ...], str]] = []

    def sort_by(self, key: Callable[[Request], tuple[float, ...]]) -> None:
        """Order the requests by this key from now on; a change of the key takes O(n)."""
        if key is not self._key:
            self._key = key
            self._sort()

    def _sort(self) -> None:
        self._heap = [(self._key(request), request.id) for request in self._waiting.values()]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests in order; the queue must not change meanwhile. The first k take O(k log k)."""
        last = None
        for entry in ascending(self._heap):
            # A request that was discarded and came back has two entries.
            if entry != last and self._is_valid(entry):
                last = entry
                yield self._waiting[entry[1]]

    def __getitem__(self, request_id: str) -> Request:
        return self._waiting[request_id]

    def add(self, request: Request) -> None:
        """Add a request."""
        self._waiting[request.id] = request
        heapq.heappush(self._heap, (self._key(request), request.id))

    def discard(self, request_id: str) -> bool:
        """Remove a request; return whether it waited here."""
        waited = self._waiting.pop(request_id, None) is not None
        self.peek()  # an iteration would pass the outdated entries at the front each time
        if len(self._heap) > 2 * len(self._waiting) + FEWEST_SORTED:
            self._sort()
        return waited

    def take(self, most: int) -> tuple[Request, ...]:
        """Remove and return the earliest requests, at most `most`."""
        taken: list[Request] = []
        while len(taken) < most and (request := self.peek()):
            heapq.heappop(self._heap)
            taken.append(self._waiting.pop(request.id))
        return tuple(taken)

    def peek(self) -> Request | None:
        """Return the earliest request, or None if the queue is empty."""
        while self._heap and not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][1]] if self._heap else None

    def _is_valid(self, entry: tuple[tuple[float, ...], str]) -> bool:
        """Return whether the entry's request waits with the entry's key; it may have been removed and come back."""
        request = self._waiting.get(entry[1])
        return request is not None and self._key(request) == entry[0]
