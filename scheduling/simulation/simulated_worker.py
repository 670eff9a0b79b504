"""A simulated worker: a queue of run-to-completion batches, or one continuous batch, in virtual time."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment, RunningRow, Worker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts, Tokens, run_static
from scheduling.simulation.event_queue import ROUNDING_S
from scheduling.simulation.simulated_batch import ContinuousBatch, SimulatedRow
from scheduling.simulation.worker_outcomes import (
    Outcome,
    Preempted,
    RanOutOfMemory,
    RequestDone,
    Requeued,
    RowsJoined,
    StaticBatchDone,
)
from scheduling.worker_facts import Loadable

# A preempted row rejoins once memory holds so many more tokens of every row, so that no row is preempted again at once.
# It is the block of our engine (`inference/local/joiners.py`).
REJOIN_TOKENS = 32


@dataclass(frozen=True, slots=True)
class LoadableModel:
    """A model that a simulated worker can load: the seconds of a change to it, its memory, and its engine's costs."""

    change_s: float
    memory: KvMemory
    engine: EngineCosts


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker of a fleet, present from `joins_at` to `leaves_at`; `speed` divides every duration.

    `estimated_costs` are the costs that policies see, by default the true ones. `engine` has the costs of its engine,
    by default the simulation's. The worker begins with `model`; `loadable` has all models that it can load, by name.
    """

    name: str
    memory: KvMemory
    speed: float = 1.0
    estimated_costs: ServingTime | None = None
    joins_at: float = 0.0
    leaves_at: float = math.inf
    engine: EngineCosts | None = None
    model: str = ""
    loadable: Mapping[str, LoadableModel] = field(default_factory=dict, hash=False)

    def longest_row_tokens(self, model: str) -> int:
        """Return the tokens of the longest row that the memory holds with this model, or 0 if it cannot be loaded."""
        if model == self.model:
            return self.memory.longest_row_tokens
        return self.loadable[model].memory.longest_row_tokens if model in self.loadable else 0


class SimulatedWorker:
    """Carries out assignments: `next_at` is the instant of its next event, and `advance` returns its outcomes."""

    def __init__(
        self, instance: Instance, costs: EngineCosts, generation_lengths: Mapping[str, int], random: np.random.Generator
    ):
        self.instance = instance
        self.costs = costs.faster(instance.speed)
        self.completed_at = instance.joins_at
        self._estimated_costs = instance.estimated_costs or self.costs.curves
        self._generation_lengths = generation_lengths
        self._random = random
        self._loadable = {
            name: Loadable(one.change_s, one.memory, one.engine.faster(instance.speed).curves)
            for name, one in instance.loadable.items()
        }
        self._queue: deque[Assignment] = deque()
        self._running: StaticBatchDone | None = None  # the running batch's outcome, computed when the batch starts
        self._running_ends_at = 0.0
        self._use_memory(instance.memory)
        self._joining: deque[Assignment] = deque()
        self._join_iteration = 0  # the continuous batch's iteration after which `_joining` may join
        self._preempted: list[SimulatedRow] = []  # rows that wait here for memory, in the order in which they rejoin
        self._tokens = Tokens()
        self._busy_s = 0.0
        self._description: Worker | None = None
        self._description_iteration = 0

    def _use_memory(self, memory: KvMemory) -> None:
        theta_bytes = int(memory.capacity_tokens * (1 + self.costs.headroom)) * memory.delta_bytes
        self._batch = ContinuousBatch(self.costs, replace(memory, theta_bytes=theta_bytes))

    @property
    def tokens(self) -> Tokens:
        """Return the counts of all tokens computed on this worker."""
        total = Tokens()
        total += self._tokens
        total += self._batch.tokens
        return total

    @property
    def busy_s(self) -> float:
        """Return the seconds that this worker has spent computing."""
        return self._busy_s + self._batch.busy_s

    def describe(self, now: float) -> Worker:
        """Return the worker as policies see it, as the same object until something that policies see changes."""
        iteration = min(self._batch.iteration_at(now), self._next_event_iteration()) if self._batch.rows else 0
        if self._description and not self._running and self._description_iteration == iteration:
            return self._description
        instance = self.instance
        busy_s = sum(assignment.estimated_s for assignment in self._queue)
        if self._running:
            busy_s += max(0.0, self._running.assignment.estimated_s - (now - self._running.started_at))
        queued = len(self._queue) + (self._running is not None)
        rows = self._describe_rows(iteration, now)
        self._description = Worker(
            instance.name,
            instance.memory.sharing(self._batch.shared_tokens),
            self._estimated_costs,
            rows,
            busy_s,
            queued,
            model=instance.model,
            prefix_cache=bool(self.costs.shared_tokens),
            loadable=self._loadable,
        )
        self._description_iteration = iteration
        return self._description

    def accept(self, assignment: Assignment, now: float) -> None:
        """Take an assignment: rows join after the present iteration, a batch runs after the queued batches."""
        self._description = None
        if not assignment.joins:
            self._queue.append(assignment)
            return
        self._catch_up(now)
        self._joining.append(assignment)
        self._join_iteration = self._batch.iteration + bool(self._batch.rows and self._batch.at < now - ROUNDING_S)

    def resume_rows(self, rows: Sequence[RunningRow], now: float) -> None:
        """Continue a continuous batch that is already running."""
        self._description = None
        self._batch.resume(rows, [self._generation_lengths[row.request.id] for row in rows], now)

    def resume_batch(self, assignment: Assignment, started_at: float, now: float) -> None:
        """Continue a run-to-completion batch that has started and not ended."""
        self._description = None
        self._start_batch(assignment, started_at)
        self._running_ends_at = max(self._running_ends_at, now)

    def next_at(self) -> float:
        """Return the instant of the next event, or infinity if there is none."""
        if self._running:
            return self._running_ends_at
        if self._batch.rows:
            return self._batch.at + self._batch.decode_s(self._next_event_iteration() - self._batch.iteration)
        return self._batch.at if self._joining or self._queue else math.inf

    def advance(self, now: float) -> list[Outcome]:
        """Advance to `now`, the instant of `next_at` or of an assignment; return the outcomes up to then."""
        self._description = None
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
        """Return every unfinished request as it was assigned, and its number of generated tokens, which are lost."""
        waiting = [*self._joining, *self._queue, *([self._running.assignment] if self._running else [])]
        requests = [(request, request.generated) for assignment in waiting for request in assignment.requests]
        requests += [(row.request, row.generated_offset + self._batch.iteration) for row in self._batch.rows.values()]
        computing = [*self._batch.prefilling.values(), *self._preempted]
        return requests + [(row.request, row.request.generated) for row in computing]

    def _start_batch(self, assignment: Assignment, now: float) -> None:
        totals = self._totals(assignment)
        most_tokens = self._batch.memory.tokens_within(len(totals))
        run = run_static(assignment.requests, totals, assignment.iteration_limit, most_tokens, self.costs)
        self._running = StaticBatchDone(assignment, now, run)
        self._running_ends_at = now + run.duration_s * self._draw_slowdown()

    def _end_batch(self, ended: StaticBatchDone) -> list[Outcome]:
        self._running = None
        self._tokens += ended.run.tokens
        self._busy_s += self._running_ends_at - ended.started_at
        if ended.run.out_of_memory:
            return [ended, RanOutOfMemory(ended.assignment, alone=len(ended.assignment.requests) == 1)]
        requests = zip(ended.assignment.requests, ended.run.generated, strict=True)
        return [*(self._row_left(request, request.generated + more) for request, more in requests), ended]

    def _decode(self, now: float) -> list[Outcome]:
        """Decode the continuous batch up to `now`; remove rows that are done or do not fit, and let others join."""
        batch, outcomes = self._batch, list[Outcome]()
        self._catch_up(now)
        outcomes += [self._row_left(row.request, row.stops_at) for row in batch.pop_done()]
        while batch.is_full():
            row = batch.preempt()
            if batch.size:
                self._preempted.insert(0, row)
                outcomes.append(Preempted(row.request))
            else:
                outcomes.append(RanOutOfMemory(Assignment(self.instance.name, (row.request,), joins=True), alone=True))
        self._rejoin(now)
        while self._next_may_join() and batch.iteration >= self._join_iteration:
            outcomes += self._join(self._joining.popleft(), now)
        return outcomes

    def _rejoin(self, now: float) -> None:
        """Let preempted rows join again, as soon as memory holds them and REJOIN_TOKENS more of each row."""
        while self._preempted and self._batch.accepts_joiners:
            row = self._preempted[0]
            if self._batch.size and not self._batch.fits([row.request], growth=REJOIN_TOKENS):
                return
            del self._preempted[0]
            self._batch.join([row.request], [row.stops_at], now)

    def _next_may_join(self) -> bool:
        """Return whether the next joiners may join without waiting for rows to leave or for a chunked prefill."""
        if not self._joining or not self._batch.accepts_joiners:
            return False
        first = self._joining[0]
        leaving = sum(request_id in self._batch.rows for request_id in first.preempts)
        return first.most_rows is None or self._batch.size - leaving + len(first.requests) <= first.most_rows

    def _join(self, assignment: Assignment, now: float) -> list[Outcome]:
        batch, outcomes = self._batch, list[Outcome]()
        for request_id in assignment.preempts:
            if request_id in batch.rows:
                outcomes.append(Requeued(batch.leave(request_id), preempted=True))
            outcomes += [
                Requeued(row.request, preempted=True) for row in self._preempted if row.request.id == request_id
            ]
            self._preempted = [row for row in self._preempted if row.request.id != request_id]
        if assignment.requests:
            waiting = [row.request for row in self._preempted]
            if not batch.fits([*waiting, *assignment.requests]):
                return [*outcomes, RanOutOfMemory(assignment, alone=len(assignment.requests) == 1 and not batch.size)]
            batch.slowdown = self._draw_slowdown()
            totals = self._totals(assignment)
            limit = assignment.iteration_limit or max(totals)
            stops_at = [min(total, r.generated + limit) for total, r in zip(totals, assignment.requests, strict=True)]
            batch.join(assignment.requests, stops_at, now)
        return [*outcomes, RowsJoined(assignment, batch.at, batch.length)]

    def _totals(self, assignment: Assignment) -> list[int]:
        """Return the true generation lengths of an assignment's requests."""
        return [self._generation_lengths[request.id] for request in assignment.requests]

    def _row_left(self, request: Request, generated: int) -> Outcome:
        if generated >= self._generation_lengths[request.id]:
            return RequestDone(request, generated)
        return Requeued(replace(request, generated=generated), preempted=False)

    def _catch_up(self, now: float) -> None:
        """Decode the iterations of the continuous batch that are over by `now`, up to its next event."""
        batch = self._batch
        if batch.rows:
            batch.decode_until(min(batch.iteration_at(now), self._next_event_iteration()))
        else:
            batch.at = max(batch.at, now)

    def _next_event_iteration(self) -> int:
        """Return the iteration of the continuous batch after which rows leave or join."""
        batch = self._batch
        if self._next_may_join():
            return max(batch.iteration, min(self._join_iteration, batch.next_event()))
        return max(batch.iteration, batch.next_event())

    def _describe_rows(self, iteration: int, now: float) -> tuple[RunningRow, ...]:
        batch = self._batch
        rows = [RunningRow(row.request, row.generated_offset + iteration, row.joined_at) for row in batch.rows.values()]
        computing = [*batch.prefilling.values(), *self._preempted]
        rows += [RunningRow(row.request, row.request.generated, row.joined_at) for row in computing]
        for assignment in self._joining:
            rows = [row for row in rows if row.request.id not in assignment.preempts]
            rows += [RunningRow(request, request.generated, now) for request in assignment.requests]
        return tuple(rows)

    def _draw_slowdown(self) -> float:
        """Draw a factor for durations, of mean 1; the least factor of 0.1 keeps durations positive."""
        return max(0.1, 1 + self.costs.jitter * self._random.standard_normal()) if self.costs.jitter else 1.0
