"""A simulated worker: a queue of run-to-completion batches, or one continuous batch, in virtual time."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment, RunningRow, Worker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts, Tokens
from scheduling.simulation.simulated_batch import ROUNDING_S, ContinuousBatch
from scheduling.simulation.static_run import StaticRun, run_static


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker of a fleet; `speed` divides every duration, `believed` is what policies are told of them instead."""

    name: str
    memory: KvMemory
    speed: float = 1.0
    believed: ServingTime | None = None
    joins_at: float = 0.0
    leaves_at: float = math.inf


@dataclass(frozen=True, slots=True)
class RequestDone:
    """A request whose last token is out."""

    request: Request
    generated: int


@dataclass(frozen=True, slots=True)
class Requeued:
    """A request that comes back with what it has generated; `preempted` if it was made to leave."""

    request: Request
    preempted: bool


@dataclass(frozen=True, slots=True)
class StaticBatchDone:
    """A run-to-completion batch that is over."""

    assignment: Assignment
    started_at: float
    run: StaticRun


@dataclass(frozen=True, slots=True)
class RowsJoined:
    """A group that has entered the continuous batch; `at` is when its prefill ends, or begins if it is chunked."""

    assignment: Assignment
    at: float
    length: int


@dataclass(frozen=True, slots=True)
class BeyondMemory:
    """Work that did not fit."""

    assignment: Assignment


Outcome = RequestDone | Requeued | StaticBatchDone | RowsJoined | BeyondMemory


class SimulatedWorker:
    """Carries out assignments; `next_at` says when something will happen, `advance` lets it happen."""

    def __init__(self, instance: Instance, costs: EngineCosts, totals: Mapping[str, int], chance: np.random.Generator):
        self.instance = instance
        self.costs = costs.faster(instance.speed)
        self.completed_at = instance.joins_at
        self._believed = instance.believed or self.costs.curves
        self._totals = totals
        self._chance = chance
        self._capacity_tokens = int(instance.memory.capacity_tokens * (1 + costs.headroom))
        self._queue: deque[Assignment] = deque()
        self._running: StaticBatchDone | None = None  # known to the end from the start
        self._running_ends_at = 0.0
        self._batch = ContinuousBatch(self.costs, self._capacity_tokens)
        self._joining: deque[Assignment] = deque()
        self._join_iteration = 0  # of the continuous batch, after which those joining may enter
        self._tokens = Tokens()
        self._busy_s = 0.0
        self._described: Worker | None = None
        self._described_iteration = 0

    @property
    def tokens(self) -> Tokens:
        """All that was computed here."""
        total = Tokens()
        total += self._tokens
        total += self._batch.tokens
        return total

    @property
    def busy_s(self) -> float:
        """Seconds spent computing."""
        return self._busy_s + self._batch.busy_s

    def describe(self, now: float) -> Worker:
        """The worker as policies see it; the same object while nothing that they see has changed."""
        iteration = min(self._batch.iteration_at(now), self._next_iteration()) if self._batch.rows else 0
        if self._described and not self._running and self._described_iteration == iteration:
            return self._described
        instance = self.instance
        busy_s = sum(assignment.estimated_s for assignment in self._queue)
        if self._running:
            busy_s += max(0.0, self._running.assignment.estimated_s - (now - self._running.started_at))
        queued = len(self._queue) + (self._running is not None)
        rows = self._rows(iteration, now)
        self._described = Worker(instance.name, instance.memory, self._believed, rows, busy_s, queued)
        self._described_iteration = iteration
        return self._described

    def give(self, assignment: Assignment, now: float) -> None:
        """Take on an assignment: rows join after the iteration that is under way, a batch runs when its turn comes."""
        self._described = None
        if not assignment.joins:
            self._queue.append(assignment)
            return
        self._catch_up(now)
        self._joining.append(assignment)
        self._join_iteration = self._batch.iteration + bool(self._batch.rows and self._batch.at < now - ROUNDING_S)

    def next_at(self) -> float:
        """When something happens here next."""
        if self._running:
            return self._running_ends_at
        if self._batch.rows:
            return self._batch.at + self._batch.seconds(self._next_iteration() - self._batch.iteration)
        return self._batch.at if self._joining or self._queue else math.inf

    def advance(self, now: float) -> list[Outcome]:
        """Let happen what happens at `now`, the instant that `next_at` gave or that of an assignment."""
        self._described = None
        outcomes: list[Outcome] = []
        if self._running and self._running_ends_at <= now:
            outcomes += self._end_batch(self._running)
        if not self._running:
            outcomes += self._decode(now)
        if self._queue and not self._running and not self._batch.size:
            self._start_batch(self._queue.popleft(), now)
        if any(not isinstance(outcome, RowsJoined) for outcome in outcomes):
            self.completed_at = now
        return outcomes

    def abandon(self) -> list[tuple[Request, int]]:
        """Leave with everything that was under way: the requests as they were assigned, with the tokens they had."""
        held = [*self._joining, *self._queue, *([self._running.assignment] if self._running else [])]
        requests = [(request, request.generated) for assignment in held for request in assignment.requests]
        requests += [(row.request, row.base + self._batch.iteration) for row in self._batch.rows.values()]
        return requests + [(row.request, row.request.generated) for row in self._batch.prefilling.values()]

    def _start_batch(self, assignment: Assignment, now: float) -> None:
        totals = [self._totals[request.id] for request in assignment.requests]
        run = run_static(assignment.requests, totals, assignment.iteration_limit, self._capacity_tokens, self.costs)
        self._running = StaticBatchDone(assignment, now, run)
        self._running_ends_at = now + run.duration_s * self._pace()

    def _end_batch(self, ended: StaticBatchDone) -> list[Outcome]:
        self._running = None
        self._tokens += ended.run.tokens
        self._busy_s += self._running_ends_at - ended.started_at
        if ended.run.out_of_memory:
            return [ended, BeyondMemory(ended.assignment)]
        requests = zip(ended.assignment.requests, ended.run.generated, strict=True)
        return [*(self._left(request, request.generated + more) for request, more in requests), ended]

    def _decode(self, now: float) -> list[Outcome]:
        """Run the continuous batch to its next event, at `now`, and let rows leave and enter."""
        batch, outcomes = self._batch, list[Outcome]()
        self._catch_up(now)
        outcomes += [self._left(row.request, row.stops_at) for row in batch.done()]
        while batch.out_of_memory():
            request = batch.leave(batch.newest())
            alone = not batch.size
            outcomes.append(
                BeyondMemory(Assignment(self.instance.name, (request,), joins=True))
                if alone
                else Requeued(request, True)
            )
        while self._joining and batch.may_join and batch.iteration >= self._join_iteration:
            outcomes += self._join(self._joining.popleft(), now)
        return outcomes

    def _join(self, assignment: Assignment, now: float) -> list[Outcome]:
        batch, outcomes = self._batch, list[Outcome]()
        for request_id in assignment.preempts:
            if request_id in batch.rows:
                outcomes.append(Requeued(batch.leave(request_id), preempted=True))
        if not batch.holds(assignment.requests):
            return [*outcomes, BeyondMemory(assignment)]
        if assignment.requests:
            batch.pace = self._pace()
            limit = assignment.iteration_limit or max(self._totals[request.id] for request in assignment.requests)
            stops_at = [min(self._totals[request.id], request.generated + limit) for request in assignment.requests]
            batch.join(assignment.requests, stops_at, now)
        return [*outcomes, RowsJoined(assignment, batch.at, batch.length)]

    def _left(self, request: Request, generated: int) -> Outcome:
        if generated >= self._totals[request.id]:
            return RequestDone(request, generated)
        return Requeued(replace(request, generated=generated), preempted=False)

    def _catch_up(self, now: float) -> None:
        """Apply the iterations of the continuous batch that are over."""
        batch = self._batch
        if batch.rows:
            batch.run(min(batch.iteration_at(now), self._next_iteration()))
        else:
            batch.at = max(batch.at, now)

    def _next_iteration(self) -> int:
        """The iteration of the continuous batch after which something happens."""
        batch = self._batch
        if self._joining and batch.may_join:
            return max(batch.iteration, min(self._join_iteration, batch.next_event()))
        return max(batch.iteration, batch.next_event())

    def _rows(self, iteration: int, now: float) -> tuple[RunningRow, ...]:
        batch = self._batch
        rows = [RunningRow(row.request, row.base + iteration, row.joined_at) for row in batch.rows.values()]
        rows += [RunningRow(row.request, row.request.generated, row.joined_at) for row in batch.prefilling.values()]
        for assignment in self._joining:
            rows = [row for row in rows if row.request.id not in assignment.preempts]
            rows += [RunningRow(request, request.generated, now) for request in assignment.requests]
        return tuple(rows)

    def _pace(self) -> float:
        return max(0.1, 1 + self.costs.jitter * self._chance.standard_normal()) if self.costs.jitter else 1.0
