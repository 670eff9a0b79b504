"""Serves background requests, the lines of bulk jobs, with the capacity left by others, under any policy.

Others go first: while any of them waits, background requests get idle workers only, which the others could not use.
If others came lately, background requests may fill a part of the fleet's memory: all of as few workers as possible,
so that the others start at once on the remaining ones, where their steps take no longer. Background requests go in
order of arrival, and the last ones longest first, so that a bulk job does not end with a few long rows on an empty
fleet (longest processing time first).

Starvation: a background request with a deadline counts as any other once half of its time has passed. One without a
deadline waits as long as others do.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from scheduling.arrival_queue import ascending
from scheduling.costs import ServingTime
from scheduling.policies.wrapping.wrapping_policy import WrappingPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, waiting_batch
from scheduling.request import BACKGROUND_PRIORITY, Request

# The share of unreserved memory that background requests may fill while others arrive. Simulated on four workers at 0.3
# and 0.6 of capacity with the KEPT_FREE below, the background gets 86 and 83 % of the spare capacity, and the others'
# P99 is 1.17 and 1.23 times as long as alone (docs/results/api.md). A single worker needs a smaller share.
BACKGROUND_SHARE = 0.6
# Bytes reserved for other requests, as a multiple of what their rows will hold at their ends, because they arrive in
# bursts. With 2 other requests wait 1.4 times as long at 0.6 of capacity; with 4 the background gets three quarters of
# the spare capacity.
KEPT_FREE = 3.5
# On a worker shared with other requests, background rows stop at this share of the throughput that its full memory
# would give: if few rows keep a machine busy, more rows only make each step longer. On the simulated worker that is 0.6
# of the memory, so there BACKGROUND_SHARE decides (docs/results/api.md).
ENOUGH_THROUGHPUT = 0.8
# After this time without other requests, background requests may fill all memory; the next other request then waits for
# a row to end. Several times the gap between the calls of a person at work; not tuned.
QUIET_S = 60.0
# When at most this many background requests a worker are left, the longest predicted go first. Earlier, long rows would
# fill all workers' memory at once and slow the other requests. Several times the rows of a worker; not tuned.
LAST_PER_WORKER = 100
# Background requests that one decision of the policy sees. More of them cost more in each decision: a
# simulated bulk job alone took as long with 8, 16 and 64, and its decisions 0.65, 0.73 and 1.25 s.
FED_AT_ONCE = 16
# Seconds between a row's end and the start of the next row in its place: half of the planner's 0.06 s step, a message
# and a transaction. It matters if rows take only a fraction of a second.
REFILL_S = 0.05


class SpareCapacity(WrappingPolicy):
    """Two policies of the same kind: one for other requests, and one for background requests in the spare capacity."""

    def __init__(self, make_policy: Callable[[], Policy], share: float = BACKGROUND_SHARE) -> None:
        """Make both policies; `share` is explained at BACKGROUND_SHARE."""
        self._share = share
        self._others, self._background = make_policy(), make_policy()
        self.mode = self._others.mode
        self._held: dict[str, Request] = {}  # background requests that the policy has not seen yet
        self._fed: dict[str, Request] = {}  # those that it has seen and not assigned
        # heaps of ids by arrival and by length; ids of removed requests may remain
        self._orders: dict[bool, list[tuple[int, int, float, str]]] = {False: [], True: []}
        self._by_length = True
        self._half_time: list[tuple[float, str]] = []
        self._costs: ServingTime | None = None
        self._other_at = -math.inf  # when the last non-background request arrived

    def __len__(self) -> int:
        return super().__len__() + len(self._held)

    def _inner(self) -> Iterable[Policy]:
        return self._others, self._background

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        if not request.background:
            self._other_at = now
            self._others.add(request, now)
            return
        self._held[request.id] = request
        for by_length, order in self._orders.items():
            heapq.heappush(order, _entry(request, by_length))
        if request.deadline_at is not None:
            heapq.heappush(self._half_time, ((request.arrived_at + request.deadline_at) / 2, request.id))

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        self._fed.pop(request_id, None)
        in_queue = self._held.pop(request_id, None) is not None
        return in_queue or super().discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Assign the others' requests, then background requests with the capacity that is left."""
        self._costs = workers[0].costs if workers else self._costs
        self._promote(now)
        assignments = self._others.assign(workers, now)
        if not (self._held or len(self._background)):
            return assignments
        left = {worker.name: worker for worker in workers}
        for assignment in assignments:
            left[assignment.worker] = left[assignment.worker].given(assignment, now)
        return [*assignments, *self._assign_background(left, now)]

    def _assign_background(self, left: dict[str, Worker], now: float) -> Iterator[Assignment]:
        """Feed the policy until it leaves some requests waiting: then the workers are full."""
        self._by_length = len(self._held) <= LAST_PER_WORKER * len(left)
        while may_take := self._may_take(left.values(), now):
            self._feed(now)
            assignments = self._background.assign(may_take, now)
            # a request larger than the part of an empty worker would wait for ever
            if not assignments and (empty := [left[one.name] for one in may_take if one.idle]):
                assignments = self._background.assign(empty, now)
            for assignment in assignments:
                left[assignment.worker] = left[assignment.worker].given(assignment, now)
                for request in assignment.requests:
                    self._fed.pop(request.id, None)
                yield assignment
            if not assignments or len(self._background):
                return

    def _may_take(self, workers: Iterable[Worker], now: float) -> list[Worker]:
        """Return the workers for background requests: idle ones while others wait or where rows do not join."""
        if self.mode != "continuous" or len(self._others):
            return [worker for worker in workers if worker.idle]
        next_ones = list(islice(chain(self._fed.values(), self._held.values()), FED_AT_ONCE))
        if now - self._other_at > QUIET_S or not next_ones:
            return list(workers)
        return background_part(workers, self._share, typical_row(next_ones))

    def _feed(self, now: float) -> None:
        order = self._orders[self._by_length]
        while order and len(self._background) < FED_AT_ONCE:
            request = self._held.pop(heapq.heappop(order)[3], None)
            if request is not None:
                self._fed[request.id] = request
                self._background.add(request, now)
        if not self._held:  # all entries of the other order are outdated
            self._orders[not self._by_length].clear()

    def _promote(self, now: float) -> None:
        """Move background requests whose time is half over to the others."""
        while self._half_time and self._half_time[0][0] <= now:
            request_id = heapq.heappop(self._half_time)[1]
            request = self._held.pop(request_id, None) or self._fed.pop(request_id, None)
            if request is not None:
                self._background.discard(request_id)
                self._others.add(replace(request, priority=request.priority - BACKGROUND_PRIORITY), now)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy that made it."""
        background = any(request.background for request in assignment.requests)
        (self._background if background else self._others).out_of_memory(assignment, now)

    def wake_at(self, now: float) -> float | None:
        """Return when a policy wants to be asked again, or half of a background request's time is over."""
        instants = (super().wake_at(now), self._half_time[0][0] if self._half_time else None)
        return min((at for at in instants if at is not None), default=None)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches: other requests first, then background requests."""
        return chain(self._others.waiting(now), self._background.waiting(now), self._held_in_order(now))

    def _held_in_order(self, now: float) -> Iterator[WaitingBatch]:
        last = None  # a request that came back may have several entries
        for entry in ascending(self._orders[self._by_length]):
            request = self._held.get(entry[3])
            if request and entry == _entry(request, self._by_length) and entry != last:
                last = entry
                yield waiting_batch((request,), self._costs, now)


def _entry(request: Request, by_length: bool) -> tuple[int, int, float, str]:
    """Return the sort key: the highest priority first, then the longest or the earliest request."""
    return -request.priority, -request.remaining if by_length else 0, request.arrived_at, request.id


@dataclass(frozen=True, slots=True)
class TypicalRow:
    """The mean prompt and the mean remaining tokens of some requests."""

    length: int
    remaining: int

    @property
    def tokens(self) -> int:
        """The tokens that the row holds at its end."""
        return self.length + self.remaining


def typical_row(requests: Collection[Request]) -> TypicalRow:
    """Return the mean prompt and the mean remaining tokens of at least one request."""
    length = sum(request.prefill for request in requests) / len(requests)
    return TypicalRow(round(length), max(1, round(sum(request.remaining for request in requests) / len(requests))))


def background_part(workers: Iterable[Worker], share: float, row: TypicalRow) -> list[Worker]:
    """Return the workers that background requests may use, each with the memory that they may fill there.

    Background requests are assumed to be like `row`. Among workers with equal abilities they get all memory of the
    largest, then of the next, and a part of the last. The remaining workers serve only other requests.
    """
    by_ability: dict[frozenset[str], list[Worker]] = {}
    for worker in workers:
        by_ability.setdefault(worker.lacks, []).append(worker)
    return [part for alike in by_ability.values() for part in _largest_first(alike, share, row)]


def _largest_first(alike: Sequence[Worker], share: float, row: TypicalRow) -> Iterator[Worker]:
    not_kept = sum(worker.memory.theta_bytes - KEPT_FREE * _others_bytes(worker) for worker in alike)
    left_bytes = max(0, int(share * not_kept))
    for worker in sorted(alike, key=lambda one: (-one.memory.theta_bytes, one.name)):
        theta_bytes = worker.memory.theta_bytes
        if left_bytes < theta_bytes:
            theta_bytes = min(left_bytes, enough_rows(worker, row) * row.tokens * worker.memory.delta_bytes)
        left_bytes = max(0, left_bytes - worker.memory.theta_bytes)
        if theta_bytes >= worker.memory.delta_bytes:
            yield replace(worker, memory=replace(worker.memory, theta_bytes=theta_bytes))


def enough_rows(worker: Worker, row: TypicalRow) -> int:
    """Return the fewest rows that give `ENOUGH_THROUGHPUT` of the throughput of as many rows as the worker can run."""
    most = max(1, min(worker.memory.capacity_tokens // row.tokens, worker.memory.most_rows))
    sizes = np.arange(1, most + 1)
    lengths, generated = np.full_like(sizes, row.length), np.full_like(sizes, row.remaining)
    rows_per_s = sizes / (worker.costs.serve_many_s(sizes, lengths, generated) + REFILL_S)
    return int(np.argmax(rows_per_s >= ENOUGH_THROUGHPUT * rows_per_s[-1])) + 1


def _others_bytes(worker: Worker) -> int:
    """Return the bytes that the others' rows will hold at their predicted ends."""
    others = (row for row in worker.rows if not row.request.background)
    tokens = sum(row.request.length + max(row.generated, row.request.predicted) for row in others)
    return tokens * worker.memory.delta_bytes
