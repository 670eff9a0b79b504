"""What the rivals share: engines in vLLM's manner, which decide before an iteration who joins and who leaves.

A rival orders all requests by its `rank`. The first waiting request joins the worker with the most free memory; if no
worker admits it, all others wait behind it. A rival that `preempts` lets the rows leave that rank behind it, if it fits
then. A row that leaves keeps its tokens and is prefilled again, as is the newest row of a full memory.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduling.kv_memory import ROW_GROWTH_TOKENS
from scheduling.policy import Assignment, Mode, Policy, RunningRow, WaitingBatch, Worker, waiting_batch
from scheduling.request import Request

WATERMARK = 0.01  # vLLM admits a request only if this share of the memory stays free
# Rivals that preempt decide at these intervals while requests wait. Until then a row grows by about 4 tokens, for which
# the rows that rank last make way; a joiner must leave room for more, or it would soon leave again. Not tuned.
DECIDES_EVERY_S, GROWTH_TOKENS, GROWTH_AT_JOIN_TOKENS = 0.5, 4, 8
# A request that has waited so long goes first under the rivals that guard against starvation. Their papers count
# iterations or leave the value open; this is some times the time alone of a mean answer. Not tuned.
GUARD_S = 60.0
Rank = tuple[float, float, str]


class RivalRow(NamedTuple):
    """A request that waits or runs, with all its generated tokens."""

    request: Request
    generated: int
    runs: bool

    @property
    def cached(self) -> int:
        """Return the tokens of the row in the memory."""
        return self.request.length + self.generated


class PlannedRows:
    """A worker's rows as a decision leaves them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.rows = [RivalRow(row.request, row.generated, True) for row in worker.rows]
        self.leaving: list[str] = []
        self.last_first: list[tuple[Rank, RivalRow]] = []  # of a rival that preempts: the running rows with their ranks

    def leave(self, row: RivalRow) -> None:
        """Let a running row leave."""
        self.rows.remove(row)
        self.leaving.append(row.request.id)


@dataclass(slots=True)
class Seen:
    """What a rival has seen so far; instants in seconds, lengths in tokens."""

    now: float = 0.0
    waits_since: dict[str, float] = field(default_factory=dict)  # when a waiting request arrived or left its worker
    rejoined_at: dict[str, int] = field(default_factory=dict)  # the tokens of a request that had starved when it joined
    past: list[int] = field(default_factory=list)  # the lengths of answers, sorted; each lacks its last few tokens
    worker_of: dict[str, str] = field(default_factory=dict)  # the worker of a request, where arrivals are routed
    served: dict[str, float] = field(default_factory=dict)  # what each client has been served, by VTC's weights

    def starves(self, row: RivalRow) -> bool:
        """Return whether the request waits for longer than GUARD_S."""
        return not row.runs and self.now - self.waits_since[row.request.id] > GUARD_S


def prompts_fit(rows: Sequence[RivalRow], worker: Worker, seen: Seen) -> bool:
    """Return whether the memory holds the rows as they are, the joiner's prompt among them: vLLM looks no further."""
    return holds(rows, worker, ROW_GROWTH_TOKENS)


@dataclass(frozen=True, slots=True)
class Rule:
    """A paper's rule: the order of all requests, the least rank first, who may join, and who may have to leave."""

    rank: Callable[[RivalRow, Seen], float]
    admits: Callable[[Sequence[RivalRow], Worker, Seen], bool] = prompts_fit  # the last row is the joiner
    preempts: bool = False
    may_leave: Callable[[RivalRow, RivalRow, Seen], bool] | None = None  # whether a row makes way for the first request
    ranks_change: bool = False  # whether a join changes the ranks of waiting requests
    segment_ends: tuple[int, ...] = ()  # the generated tokens at which a row leaves and waits again


class IterationLevel(Policy):
    """Schedules continuous batches by a rule."""

    mode: Mode = "continuous"

    def __init__(self, rule: Rule) -> None:
        self.rule, self.seen = rule, Seen()
        self._waiting: dict[str, Request] = {}
        self._running: dict[str, RunningRow] = {}  # the rows of the last decision

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let rows leave that the memory will not hold, and the first waiting requests join while they are admitted."""
        planned = self.observe(workers, now)
        for rows in planned if self.rule.preempts and self._waiting else []:
            rows.last_first = self._last_first(rows.rows)
            for _, row in rows.last_first:
                if holds(rows.rows, rows.worker, GROWTH_TOKENS):
                    break
                rows.leave(row)
        self.fill(planned, self._waiting.values())
        return self.assignments(planned)

    def observe(self, workers: Sequence[Worker], now: float) -> list[PlannedRows]:
        """Compare the workers' rows with those of the last decision, and return them to be planned."""
        self.seen.now = now
        running = {row.request.id: row for worker in workers for row in worker.rows}
        for request_id, row in running.items():
            before = self._running.get(request_id)
            grew = row.generated - (before.generated if before else row.request.generated)
            self.seen.served[row.request.application] += 2 * grew
        for request_id in self._running.keys() - running.keys() - self._waiting.keys():
            insort(self.seen.past, self._running[request_id].generated)
        self._running = running
        return [PlannedRows(worker) for worker in workers]

    def fill(self, planned: Sequence[PlannedRows], requests: Iterable[Request]) -> None:
        """Let the first of these waiting requests join until one is not admitted."""
        queue = self._last_first(RivalRow(one, one.generated, False) for one in requests)
        while queue:
            _, first = queue.pop()
            place = self._place(planned, first)
            if place is None:
                return
            place.rows.append(first)
            request = self._waiting.pop(first.request.id)
            if self.seen.starves(first):
                self.seen.rejoined_at[request.id] = first.generated
            self.seen.served[request.application] += 0 if first.generated else request.length
            if self.rule.ranks_change:
                queue = self._last_first(row for _, row in queue)

    def assignments(self, planned: Iterable[PlannedRows]) -> list[Assignment]:
        """Return the decision as assignments, one for each iteration limit of a worker's joiners."""
        made = []
        for rows in planned:
            leaving, joiners = tuple(rows.leaving), [row.request for row in rows.rows if not row.runs]
            for limit in dict.fromkeys(map(self.iteration_limit, joiners)) or ([None] if leaving else []):
                own = tuple(one for one in joiners if self.iteration_limit(one) == limit)
                made.append(Assignment(rows.worker.name, own, limit, joins=True, preempts=leaving))
                leaving = ()
        return made

    def iteration_limit(self, request: Request) -> int | None:
        """Return the iterations after which a joiner leaves again; None: it stays to its end."""
        return next((end - request.generated for end in self.rule.segment_ends if request.generated < end), None)

    def _place(self, planned: Sequence[PlannedRows], first: RivalRow) -> PlannedRows | None:
        """Return the rows that a request joins, after those that make way for it have left; None if it is to wait."""
        admitting = [one for one in planned if self._admits(one.rows, first, one.worker)]
        used = {one: sum(row.cached for row in one.rows) / one.worker.memory.capacity_tokens for one in admitting}
        if used or not self.rule.preempts:
            return min(used, key=used.__getitem__, default=None)
        behind = {rows: last for rows in planned if (last := self._behind(rows, first))}
        place = min(behind, key=lambda rows: sum(row.cached for row in behind[rows]), default=None)
        if place is not None:
            for row in behind[place]:
                place.leave(row)
        return place

    def _behind(self, planned: PlannedRows, first: RivalRow) -> list[RivalRow]:
        """Return the fewest rows, the last ones, without which a worker admits the request; none if it never does."""
        key, left, behind = self._key(first), list(planned.rows), list[RivalRow]()
        for other, row in planned.last_first:
            if other <= key:
                break
            if row in left and (self.rule.may_leave is None or self.rule.may_leave(row, first, self.seen)):
                left.remove(row)
                behind.append(row)
                if self._admits(left, first, planned.worker):
                    return behind
        return []

    def _admits(self, rows: Sequence[RivalRow], row: RivalRow, worker: Worker) -> bool:
        room = not self.rule.preempts or holds([*rows, row], worker, GROWTH_AT_JOIN_TOKENS)
        return room and self.rule.admits([*rows, row], worker, self.seen)

    def _last_first(self, rows: Iterable[RivalRow]) -> list[tuple[Rank, RivalRow]]:
        """Return rows with their ranks, the first one last."""
        return sorted(((self._key(row), row) for row in rows), reverse=True)

    def _key(self, row: RivalRow) -> Rank:
        return self.rule.rank(row, self.seen), row.request.arrived_at, row.request.id

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._waiting[request.id] = request
        self.seen.waits_since[request.id] = now
        self.seen.served.setdefault(request.application, 0.0)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return whether it waited."""
        return self._waiting.pop(request_id, None) is not None

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Let joiners that did not fit beside the grown rows wait again, as predicted before."""
        for request in assignment.requests:
            self.add(request, now)

    def wake_at(self, now: float) -> float | None:
        """Return when a rival that preempts ranks its rows anew."""
        return now + DECIDES_EVERY_S if self.rule.preempts and self._waiting and self._running else None

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield the waiting requests in their order."""
        self.seen.now = now
        rows = self._last_first(RivalRow(one, one.generated, False) for one in self._waiting.values())
        return (waiting_batch((row.request,), None, now) for _, row in reversed(rows))


def holds(rows: Sequence[RivalRow], worker: Worker, growth: int) -> bool:
    """Return whether a worker's memory holds these rows, each grown by some tokens; it always holds a single row."""
    memory = worker.memory
    longest, total = max((row.cached for row in rows), default=0), sum(row.cached for row in rows)
    tokens = memory.rows_tokens(len(rows), longest + growth, total + len(rows) * growth)
    return len(rows) <= 1 or (tokens <= (1 - WATERMARK) * memory.capacity_tokens and len(rows) <= memory.most_rows)
