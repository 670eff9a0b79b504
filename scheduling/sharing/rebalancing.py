"""Lets rows leave a worker that still has many for one that has run dry, while no request waits.

At the end of a burst the workers do not end together: predictions err, and other programs slow one worker more than
another. A moved row leaves with its tokens, which the other worker prefills, and computes nothing meanwhile. So rows
move if the costs of both workers say that all rows together end sooner by LEAST_SAVED, and the last row no later. Where
iterations cost little more with more rows, as on a GPU that is far from full, that is hardly ever so.

This is no part of a policy, because a policy may not see all rows of a worker: those of background requests and those
with other needs have policies of their own. No row moves twice, or to a worker that might not hold it to its end.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from scheduling.costs import Floats, linearized
from scheduling.outer_policy import OuterPolicy
from scheduling.policies.fusion.fleet_arrays import FleetArrays, FutureMemory, MemoryRules, peak_tokens
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, waiting_batch
from scheduling.request import Request

LEAST_SAVED = 0.05
MOVE_S = 0.5
LOOK_S = 0.25
COUNTS_TRIED = 16
FEWER = 4
# A server that lacks one of these neither takes nor gives token ids, so that a moved row would begin anew.
RESUMING = frozenset({"raw_prompt", "stop_token_ids"})


class Rebalancing(OuterPolicy):
    """A policy whose rows may move between workers while it has no waiting requests."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.mode = policy, policy.mode
        self._leaving: dict[str, str] = {}  # rows that were told to leave last, and the workers that they move to
        self._moved: dict[str, tuple[Request, str]] = {}  # rows that have left, and these workers
        self._looked_at = -np.inf

    def __len__(self) -> int:
        return super().__len__() + len(self._moved)

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy."""
        self._policy.out_of_memory(assignment, now)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait; a row that moves waits for its new worker."""
        if target := self._leaving.pop(request.id, None):
            self._moved[request.id] = request, target
        else:
            self._policy.add(request, now)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        return self._moved.pop(request_id, None) is not None or self._policy.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let moved rows join and the policy assign; if nothing waits, let rows leave for workers that run dry."""
        joining = list(self._joins({worker.name: worker for worker in workers}, now))
        joined = {one.worker: one for one in joining}
        given = [worker.given(joined[worker.name], now) if worker.name in joined else worker for worker in workers]
        assignments = [*joining, *self._policy.assign(given, now)]
        if not assignments and not len(self) and now >= self._looked_at + LOOK_S:
            self._looked_at = now
            assignments += self._moves([worker for worker in workers if not worker.queued])
        return assignments

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the moved rows, which join first, and the policy's waiting batches."""
        moved = (waiting_batch((request,), None, now) for request, _ in self._moved.values())
        return chain(moved, self._policy.waiting(now))

    def _joins(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        """Yield the moved rows for their workers; the policy places rows whose worker is gone or has no memory left."""
        by_target = defaultdict(list)
        for request, target in self._moved.values():
            by_target[target].append(request)
        self._moved.clear()
        for target, requests in by_target.items():
            assignment = Assignment(target, tuple(requests), joins=True)
            worker = workers.get(target)
            if worker and not worker.queued and _fits(worker.given(assignment, now)):
                yield assignment
            else:
                for request in requests:
                    self._policy.add(request, now)

    def _moves(self, workers: Sequence[Worker]) -> Iterator[Assignment]:
        """Yield assignments that let rows leave: from the worker that ends last to the one that ends first, and so on."""
        sizes = [len(worker.rows) for worker in workers]
        if not sizes or FEWER * min(sizes) >= max(sizes) or self._leaving.keys() & _ids(workers):
            return
        self._leaving = {}
        fleet = FleetArrays(workers)
        sides = [RowsOf(worker, fleet.cached[n, :size], fleet.remaining[n, :size]) for n, (worker, size) in enumerate(zip(workers, sizes, strict=True))]
        sides.sort(key=lambda side: float(side.ends_s(side.remaining[None]).max(initial=0.0)))
        for few, many in zip(sides[: len(sides) // 2], reversed(sides)):
            moving = rows_to_move(many, few)
            if not moving:
                return
            self._leaving |= dict.fromkeys(moving, few.worker.name)
            yield Assignment(many.worker.name, (), joins=True, preempts=moving)


def _ids(workers: Iterable[Worker]) -> set[str]:
    return {row.request.id for worker in workers for row in worker.rows}


@dataclass(frozen=True, slots=True)
class RowsOf:
    """A worker, and the cached and the predicted remaining tokens of its rows, (rows,)."""

    worker: Worker
    cached: Floats
    remaining: Floats

    def ends_s(self, remaining: Floats) -> Floats:
        """Return the seconds until each row ends, (sets, rows), in each set of rows; those not in it have -inf tokens.

        The rows are in the order of their remaining tokens, the most first.
        """
        memory, curves = self.worker.memory, linearized(self.worker.costs)
        rules = MemoryRules.of([memory] * len(remaining))
        rows = FutureMemory.from_rows(np.broadcast_to(self.cached, remaining.shape), remaining, rules)
        left = np.arange(1, remaining.shape[1] + 1)
        ends = np.pad(np.maximum(rows.remaining, 0.0), ((0, 0), (0, 1)))
        iterations, elapsed = ends[:, :-1] - ends[:, 1:], (ends[:, :-1] + ends[:, 1:]) / 2
        read = (rows.total / left if memory.paged else rows.longest) + elapsed
        d1, d2, d3, d4 = curves.decode
        seconds = iterations * (d1 * left * read + d2 * left + d3 * read + d4)
        return np.cumsum(seconds[:, ::-1], axis=1)[:, ::-1]


def rows_to_move(many: RowsOf, few: RowsOf) -> tuple[str, ...]:
    """Return the ids of the rows that should leave one worker for the other: those with the most remaining tokens."""
    rows = many.worker.rows
    larger = few.worker.memory.longest_row_tokens >= many.worker.memory.longest_row_tokens
    if many.worker.lacks != few.worker.lacks or many.worker.lacks & RESUMING or not larger:
        return ()
    order = [row for row in np.argsort(-many.remaining).tolist() if not rows[row].request.generated]
    place = np.full(len(rows), len(rows))
    place[order] = np.arange(len(order))
    counts = np.unique(np.linspace(0, len(order), COUNTS_TRIED + 1, dtype=np.int64))
    moves = place < counts[:, None]  # (sets, rows)

    staying = np.where(moves, -np.inf, many.remaining)
    both = RowsOf(few.worker, np.concatenate([few.cached, many.cached]), np.concatenate([few.remaining, many.remaining]))
    there = np.concatenate([np.broadcast_to(few.remaining, (len(counts), len(few.remaining))), np.where(moves, many.remaining, -np.inf)], axis=1)
    p1, p2, p3, p4 = linearized(few.worker.costs).prefill
    cached = np.where(moves, many.cached, 0.0)
    prefill_s = np.where(counts > 0, p4, 0.0) + p3 * cached.max(axis=1) + p1 * cached.sum(axis=1) + p2 * counts
    stay_s, there_s = many.ends_s(staying), both.ends_s(there)
    summed_s = stay_s.sum(axis=1) + there_s.sum(axis=1) + prefill_s * (len(few.remaining) + counts) + MOVE_S * counts
    last_s = np.maximum(stay_s.max(axis=1), there_s.max(axis=1) + prefill_s + MOVE_S * (counts > 0))
    summed_s[last_s > last_s[0]] = np.inf
    for chosen in np.argsort(summed_s, kind="stable").tolist():
        if summed_s[chosen] > (1 - LEAST_SAVED) * summed_s[0]:
            break
        is_there = there[chosen] > -np.inf
        memory = few.worker.memory
        if counts[chosen] + len(few.remaining) <= memory.most_rows and peak_tokens(both.cached[is_there], there[chosen][is_there], memory) <= memory.capacity_tokens:
            return tuple(rows[row].request.id for row in order[: counts[chosen]])
    return ()


def _fits(worker: Worker) -> bool:
    """Return whether the worker's rows are predicted to fit its memory to their ends."""
    fleet = FleetArrays([worker])
    peak = peak_tokens(fleet.cached[0, :-1], fleet.remaining[0, :-1], worker.memory)
    return len(worker.rows) <= worker.memory.most_rows and peak <= worker.memory.capacity_tokens
