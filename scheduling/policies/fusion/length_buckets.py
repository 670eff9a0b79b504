"""The waiting room of one tenant, in lanes of alike requests: a decision looks at the head of each, however many wait.

Requests whose prompt and predicted remaining tokens lie within the same steps of a quarter share a lane and
leave it in order of arrival, those with a deadline in order of their deadlines. The number of lanes is that of steps
that occur, some hundred, not that of requests.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from scheduling.arrival_queue import ascending
from scheduling.costs import Floats
from scheduling.policies.fusion.work_features import NOTHING, Features
from scheduling.request import Request

STEP = math.log(1.25)
SCALARS = 6  # columns of `Heads` before those of `ahead`


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, and the features of all that waited when it came (see `features`)."""

    request: Request
    ahead: Features = NOTHING

    def misses_deadline(self, now: float, step_s: float) -> bool:
        """Whether it would, with iterations of that many seconds."""
        deadline_at = self.request.deadline_at
        return deadline_at is not None and deadline_at < now + self.request.remaining * step_s


BucketKey = tuple[int, int, int, bool]


def bucket_of(request: Request, hopeless: bool = False) -> BucketKey:
    """Priority, steps of prompt and of remaining tokens, and whether its deadline counts."""
    return (
        request.priority,
        int(math.log(request.prefill) / STEP),
        int(math.log(request.remaining) / STEP),
        request.deadline_at is not None and not hopeless,
    )


@dataclass(frozen=True, slots=True)
class Heads:
    """The first request of each lane, as columns; `deadline_at` is infinite where there is none."""

    arrived_at: Floats
    deadline_at: Floats
    priority: Floats
    prefill: Floats
    remaining: Floats
    remaining_upper: Floats
    ahead: Floats  # (features, lanes)

    @classmethod
    def of(cls, waiting: Sequence[WaitingRequest]) -> "Heads":
        """Columns of these requests, as if each were the head of a lane."""
        columns = np.array([_column(one, counts=True) for one in waiting]).T
        return cls.in_columns(columns)

    @classmethod
    def in_columns(cls, columns: Floats) -> "Heads":
        """From a matrix, a request a column."""
        arrived_at, deadline_at, priority, prefill, remaining, remaining_upper = columns[:SCALARS]
        return cls(arrived_at, deadline_at, priority, prefill, remaining, remaining_upper, columns[SCALARS:])


class LengthBuckets:
    """Lanes of alike requests; taken out by lane or by id."""

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingRequest] = {}
        self._lane_of: dict[str, BucketKey] = {}
        self._heaps: dict[BucketKey, list[tuple[float, float, str]]] = {}  # entries of discarded requests surface later
        self._place: dict[BucketKey, int] = {}
        self._order: list[BucketKey] = []
        self._columns = np.empty((SCALARS + len(NOTHING), 64))

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._waiting.values())

    def add(self, waiting: WaitingRequest, hopeless: bool = False) -> None:
        """Let a request wait; with a hopeless deadline, among those without."""
        request = waiting.request
        lane = bucket_of(request, hopeless)
        self._waiting[request.id], self._lane_of[request.id] = waiting, lane
        first = request.deadline_at if lane[3] and request.deadline_at is not None else request.arrived_at
        heap = self._heaps.setdefault(lane, [])
        heapq.heappush(heap, (first, request.arrived_at, request.id))
        if heap[0][2] == request.id:
            self._show(lane)

    def take(self, request_id: str) -> WaitingRequest:
        """Take a request out, wherever in its lane it is."""
        waiting, lane = self._waiting.pop(request_id), self._lane_of.pop(request_id)
        if self._heaps[lane][0][2] == request_id:
            self._advance(lane)
        return waiting

    def give_up_hopeless(self, now: float, step_s: float) -> None:
        """Requests that would miss their deadline even if they began now wait on as if they had none."""
        for lane in [lane for lane in self._order if lane[3]]:
            while (waiting := self.first(lane)) and waiting.misses_deadline(now, step_s):
                self.add(self.take(waiting.request.id), hopeless=True)

    def front(self, most: int) -> list[WaitingRequest]:
        """The first requests of each lane, about so many of all."""
        each = max(1, most // max(1, len(self._order)))
        firsts = (islice(self._in(lane), each) for lane in self._order)
        return [waiting for lane in firsts for waiting in lane]

    def heads(self) -> Heads:
        """The first of each lane."""
        columns = self._columns[:, : len(self._order)]
        return Heads.in_columns(columns)

    def names(self) -> list[BucketKey]:
        """The lanes in the order of the columns; they change places when one is emptied."""
        return list(self._order)

    def place_of(self, request_id: str) -> int | None:
        """The column of a request, if it is at the head of its lane."""
        lane = self._lane_of.get(request_id)
        return self._place[lane] if lane and self._heaps[lane][0][2] == request_id else None

    def first(self, lane: BucketKey) -> WaitingRequest | None:
        """The request at the head of a lane."""
        return self._waiting[self._heaps[lane][0][2]] if lane in self._heaps else None

    def _in(self, lane: BucketKey) -> Iterator[WaitingRequest]:
        """A lane in its order."""
        last = ""
        for _, _, request_id in ascending(self._heaps[lane]):
            if self._lane_of.get(request_id) == lane and request_id != last:  # one that came back is there twice
                last = request_id
                yield self._waiting[request_id]

    def _advance(self, lane: BucketKey) -> None:
        """Bring the next request of a lane to its head; an empty lane gives its place to the last one."""
        heap = self._heaps[lane]
        while heap and self._lane_of.get(heap[0][2]) != lane:
            heapq.heappop(heap)
        if heap:
            self._show(lane)
            return
        del self._heaps[lane]
        place, last = self._place.pop(lane), self._order.pop()
        if last != lane:
            self._order[place], self._place[last] = last, place
            self._columns[:, place] = self._columns[:, len(self._order)]

    def _show(self, lane: BucketKey) -> None:
        """Put the head of a lane into the columns."""
        place = self._place.get(lane)
        if place is None:
            place = self._place[lane] = len(self._order)
            self._order.append(lane)
            if place == self._columns.shape[1]:
                self._columns = np.concatenate([self._columns, np.empty_like(self._columns)], axis=1)
        self._columns[:, place] = _column(self._waiting[self._heaps[lane][0][2]], counts=lane[3])


def _column(waiting: WaitingRequest, counts: bool) -> tuple[float, ...]:
    """The column of a request; `counts` tells whether its deadline does."""
    request = waiting.request
    deadline_at = math.inf if request.deadline_at is None or not counts else request.deadline_at
    return (
        request.arrived_at,
        deadline_at,
        request.priority,
        request.prefill,
        request.remaining,
        request.remaining_upper,
        *waiting.ahead,
    )
