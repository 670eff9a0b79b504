"""Lets rows leave a worker that has many for one that runs dry, while no request waits.

At the end of a burst the workers do not end together: predictions err, speeds differ, other programs take a core. A
moved row leaves with its tokens, computes nothing on its way, and is prefilled anew. Rows move if by the costs of both
workers all their rows then end sooner, and the last one no later. Where further rows cost an iteration little, as on a
GPU that is far from full, rows stay.

This is not part of a policy, because no policy sees all rows of a worker: those of background requests, and those that
need other abilities, have policies of their own.

A row that comes back unfinished goes to the worker that it left for, or waits like others if that is gone or full. It
does not move again. While it waits it is a waiting request, so rows whose deadline for this comes soon stay.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from scheduling.costs import Floats, linearized
from scheduling.outer_policy import OuterPolicy
from scheduling.policies.fusion.fleet_arrays import FleetArrays, peak_tokens
from scheduling.policy import Assignment, Policy, RunningRow, WaitingBatch, Worker, waiting_batch
from scheduling.request import Request

# A moved row computes nothing for this long beside its prefill: until its worker's iteration ends, its tokens are
# written, and the planner has sent it on. Chosen; with 0.25 s simulated bursts end 0.4 to 1.5 % sooner.
MOVE_S = 0.5
LEAST_SAVED = 0.05  # the time until rows end, summed, must shrink by this share; 0.02 and 0.1 end bursts 0 to 1 % later
LOOK_S = 0.25  # looks are this far apart, which bounds their time in a planner and in a forecast; not tuned
FEWER = 2  # a look compares costs only if some worker has this many times the rows of another; 1 gives the same
PAIRS = 4  # in a large fleet it compares these workers with the most rows, and as many with the fewest; not tuned
COUNTS_TRIED = 16  # it compares at most this many numbers of rows to move; not tuned
DEADLINE_S = 60.0  # far longer than a move takes, also if its worker dies meanwhile
GONE_AFTER_S = 10.0  # a row that was told to leave and has not left by then is waited for no longer; not tuned
# Only our engine has this ability. Only it goes on with every row: others begin those with a seed or a format anew.
OF_OUR_ENGINE = "landing"


class Rebalancing(OuterPolicy):
    """A continuous policy; its rows move to workers that run dry while it has no waiting request."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.mode = policy, policy.mode
        self._leaving: dict[str, str] = {}  # the workers for which rows were last told to leave, by the row's id
        self._moved: dict[str, tuple[Request, str]] = {}  # the rows that have left, and these workers
        self._looked_at = self._told_at = float("-inf")

    def __len__(self) -> int:
        return super().__len__() + len(self._moved)

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy."""
        self._policy.out_of_memory(assignment, now)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait; a row that has left a worker waits for the one that it left for."""
        if target := self._leaving.pop(request.id, None):
            self._moved[request.id] = request, target
        else:
            self._policy.add(request, now)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        return self._moved.pop(request_id, None) is not None or self._policy.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let moved rows join and the policy assign; if nothing waits, let rows leave for workers that run dry."""
        joins = {one.worker: one for one in self._joins({worker.name: worker for worker in workers}, now)}
        given = [worker.given(joins[worker.name], now) if worker.name in joins else worker for worker in workers]
        assignments = [*joins.values(), *self._policy.assign(given, now)]
        if assignments or len(self) or now < self._looked_at + LOOK_S:
            return assignments
        self._looked_at = now
        return self._moves([worker for worker in workers if not worker.queued], now)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the rows that have left, one by one, then the policy's waiting batches."""
        moved = (waiting_batch((request,), None, now) for request, _ in self._moved.values())
        return chain(moved, self._policy.waiting(now))

    def _joins(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        """Yield the rows that have left as joiners; the policy gets those whose worker is gone or full."""
        by_target = defaultdict[str, list[Request]](list)
        for request, target in self._moved.values():
            by_target[target].append(request)
        self._moved.clear()
        for target, requests in by_target.items():
            assignment, worker = Assignment(target, tuple(requests), joins=True), workers.get(target)
            if worker and not worker.queued and WorkerRows.of([worker.given(assignment, now)])[0].fit():
                yield assignment
            else:
                for request in requests:
                    self._policy.add(request, now)

    def _moves(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Return which rows leave: from the worker that ends last for the one that ends first, then from the next."""
        by_rows = sorted(workers, key=lambda worker: len(worker.rows))
        if not by_rows or FEWER * len(by_rows[0].rows) >= len(by_rows[-1].rows):
            return []
        late = now >= self._told_at + GONE_AFTER_S
        if not late and any(row.request.id in self._leaving for worker in workers for row in worker.rows):
            return []
        by_end = sorted(WorkerRows.of(by_rows[:PAIRS] + by_rows[PAIRS:][-PAIRS:]), key=WorkerRows.last_s)
        pairs = zip(by_end[: len(by_end) // 2], reversed(by_end), strict=False)
        moves = [(few.worker.name, many.worker.name, rows_to_move(many, few, now)) for few, many in pairs]
        leaving = {row: target for target, _, rows in moves for row in rows}
        if leaving or late:
            self._leaving, self._told_at = leaving, now
        return [Assignment(worker, (), joins=True, preempts=rows) for _, worker, rows in moves if rows]


@dataclass(frozen=True, slots=True)
class WorkerRows:
    """A worker, and the cached and the predicted remaining tokens of its rows, (rows,)."""

    worker: Worker
    cached: Floats
    remaining: Floats

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> list["WorkerRows"]:
        """Return the rows of each worker."""
        fleet = FleetArrays(workers)
        rows = zip(workers, fleet.cached, fleet.remaining, fleet.size.tolist(), strict=True)
        return [cls(worker, cached[:size], remaining[:size]) for worker, cached, remaining, size in rows]

    def fit(self) -> bool:
        """Return whether memory is predicted to hold the rows to their ends."""
        memory = self.worker.memory
        held = peak_tokens(self.cached, self.remaining, memory)
        return len(self.cached) <= memory.most_rows and held <= memory.capacity_tokens

    def ends_s(self) -> Floats:
        """Return the seconds until each row ends, (rows,), the first end first, as if no row joined."""
        order = np.argsort(-self.remaining)
        cached, until = self.cached[order], np.maximum(self.remaining[order], 0.0)
        left, since = np.arange(1, len(order) + 1), np.append(until[1:], 0.0)  # so many rows run in these iterations
        read = np.cumsum(cached) / left if self.worker.memory.paged else np.maximum.accumulate(cached)
        read = read + (since + until + 1) / 2
        d1, d2, d3, d4 = linearized(self.worker.costs).decode
        seconds = (until - since) * (d1 * left * read + d2 * left + d3 * read + d4)
        return np.asarray(np.cumsum(seconds[::-1]), np.float64)

    def last_s(self) -> float:
        """Return the seconds until the last row ends."""
        return float(self.ends_s().max(initial=0.0))


def rows_to_move(many: WorkerRows, few: WorkerRows, now: float) -> tuple[str, ...]:
    """Return the ids of the rows that should leave `many` for `few`, of those that may leave the ones that end last."""
    leaving, rows = may_leave(many, few.worker, now), many.worker.rows
    best, least_s = 0, (1 - LEAST_SAVED) * float(many.ends_s().sum() + few.ends_s().sum())
    latest_s = max(many.last_s(), few.last_s())
    for count in np.unique(np.linspace(0, len(leaving), COUNTS_TRIED, dtype=np.int64)).tolist()[1:]:
        moved = leaving[:count]
        stay = WorkerRows(many.worker, np.delete(many.cached, moved), np.delete(many.remaining, moved))
        joiners = many.cached[moved], many.remaining[moved]
        there = WorkerRows(few.worker, np.append(few.cached, joiners[0]), np.append(few.remaining, joiners[1]))
        prefill_s = linearized(few.worker.costs).prefill_s(count, int(joiners[0].mean()))
        stay_s, there_s = stay.ends_s(), there.ends_s()
        summed_s = stay_s.sum() + there_s.sum() + prefill_s * len(there_s) + MOVE_S * count
        last_s = max(stay_s.max(initial=0.0), there_s[-1] + prefill_s + MOVE_S)
        if summed_s < least_s and last_s <= latest_s and there.fit():
            best, least_s = count, summed_s
    return tuple(rows[row].request.id for row in leaving[:best])


def may_leave(many: WorkerRows, target: Worker, now: float) -> list[int]:
    """Return which rows may leave for this worker, the one that ends last first.

    The target must be able to hold the row as far as the row's worker can, and to resume all that this one can. A row
    moves once it has a token, if it has left no worker yet, and if no row of a higher level would wait for it there.
    """
    worker = many.worker
    if target.lacks != worker.lacks or OF_OUR_ENGINE in worker.lacks:
        return []
    level = max((row.request.level for row in target.rows), default=-math.inf)
    order = np.argsort(-many.remaining, kind="stable").tolist()
    shorter = target.memory.longest_row_tokens < worker.memory.longest_row_tokens
    most_tokens = target.memory.longest_row_tokens if shorter else math.inf
    return [row for row in order if _movable(worker.rows[row], most_tokens, level, now)]


def _movable(row: RunningRow, most_tokens: float, level: float, now: float) -> bool:
    request = row.request
    held = request.length + request.limit <= most_tokens
    due_soon = request.deadline_at is not None and request.deadline_at < now + DEADLINE_S
    return held and not request.generated and row.generated > 0 and request.level >= level and not due_soon
