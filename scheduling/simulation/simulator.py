"""Any policy over any workload on any fleet in virtual time: the live planner's twin, with the same policy objects.

The loop is the planner's: let happen what happens now, ask the policy, carry its decisions out. Nothing is stepped
token by token (see `scheduling.simulation`), so the cost of a simulation is that of its events.
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.policy import Assignment, Policy, Worker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts, Tokens, reads
from scheduling.simulation.rank_correlation import RankCorrelation
from scheduling.simulation.simulated_batch import ROUNDING_S
from scheduling.simulation.simulated_worker import (
    Instance,
    Outcome,
    RequestDone,
    Requeued,
    RowsJoined,
    SimulatedWorker,
    StaticBatchDone,
)
from scheduling.simulation.trace import BatchRun, SimulatedAnswer, Trace


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and what only the simulator knows: how many tokens it will generate."""

    request: Request
    generation_length: int

    def __post_init__(self) -> None:
        if not self.request.generated < self.generation_length <= self.request.limit:
            raise ValueError(f"request {self.request.id} cannot generate {self.generation_length} tokens")


def simulate(
    policy: Policy,
    arrivals: Sequence[Arrival],
    fleet: Sequence[Instance],
    costs: EngineCosts,
    seed: int,
    *,
    tick_s: float = 0.0,
    until: float = math.inf,
) -> Trace:
    """Serve the arrivals; with `tick_s` the policy is asked at its multiples only, as a planner on a clock would be.

    Ends when nothing is left to happen, or at `until`; what is then neither in `answers` nor in `failed` was not
    served.
    """
    world = Simulation(policy, arrivals, fleet, costs, seed, tick_s)
    while (now := world.next_at()) <= until and now < math.inf:
        world.happen(now)
        if world.due(now):
            for assignment in policy.assign(world.workers(now), now):
                world.carry_out(assignment, now)
            world.asked(now)
    return world.trace()


class Simulation:
    """The arrivals to come, the workers and what they will do next."""

    def __init__(
        self,
        policy: Policy,
        arrivals: Sequence[Arrival],
        fleet: Sequence[Instance],
        costs: EngineCosts,
        seed: int,
        tick_s: float,
    ) -> None:
        self._policy, self._costs, self._tick_s = policy, costs, tick_s
        self._arrivals = sorted(arrivals, key=lambda arrival: (arrival.request.arrived_at, arrival.request.id))
        self._arrived = 0
        self._totals = {arrival.request.id: arrival.generation_length for arrival in self._arrivals}
        self._chance = np.random.default_rng(seed)
        self._fleet = sorted(fleet, key=lambda instance: instance.joins_at)  # stable: offered in the order given
        self._joined = 0
        self._live: dict[str, SimulatedWorker] = {}
        self._described: dict[str, Worker] = {}
        self._gone: list[SimulatedWorker] = []
        self._events: list[tuple[float, int, str]] = []  # instant, count, worker
        self._event_of: dict[str, int] = {}  # the count of a worker's only event that is not out of date
        self._counted = 0
        self._idle: set[str] = set()
        self._ask_at = math.inf
        self._progress: dict[str, int] = {}  # tokens that requests came back with
        self._lost = Tokens()
        self._first_started: dict[str, float] = {}
        self._schedules: Counter[str] = Counter()
        self._judge = RankCorrelation()
        self._trace = Trace(first_arrival_at=self._arrivals[0].request.arrived_at if arrivals else 0.0)
        self._largest_tokens = max(instance.memory.capacity_tokens for instance in fleet) * (1 + costs.headroom)

    def next_at(self) -> float:
        """The next instant at which anything happens."""
        soonest = min(self._ask_at, self._next_event_at())
        if self._arrived < len(self._arrivals):
            soonest = min(soonest, self._arrivals[self._arrived].request.arrived_at)
        if self._joined < len(self._fleet):
            soonest = min(soonest, self._fleet[self._joined].joins_at)
        return soonest

    def happen(self, now: float) -> None:
        """Let workers join, requests arrive, work end and workers leave, in that order."""
        while self._joined < len(self._fleet) and self._fleet[self._joined].joins_at <= now:
            instance = self._fleet[self._joined]
            worker = SimulatedWorker(instance, self._costs, self._totals, self._chance)
            self._live[instance.name] = worker
            self._joined += 1
            self._schedule(worker, now)
            self._ask_soon(now)
        while self._arrived < len(self._arrivals) and self._arrivals[self._arrived].request.arrived_at <= now:
            self._policy.add(self._arrivals[self._arrived].request, now)
            self._arrived += 1
            self._ask_soon(now)
        while self._next_event_at() <= now:
            _, _, name = heapq.heappop(self._events)
            worker = self._live[name]
            if worker.instance.leaves_at <= now:
                self._leave(worker, now)
            else:
                self._advance(worker, now)

    def due(self, now: float) -> bool:
        """Whether the policy is to be asked now."""
        if self._ask_at > now:
            return False
        self._ask_at = math.inf
        return self._policy.mode != "batch" or bool(self._idle)

    def workers(self, now: float) -> list[Worker]:
        """The live workers as policies see them; how long a busy one still takes matters to queues and rows only."""
        if self._policy.mode == "batch":
            return list(self._described.values())
        return [worker.describe(now) for worker in self._live.values()]

    def carry_out(self, assignment: Assignment, now: float) -> None:
        """Hand an assignment to its worker."""
        for request in assignment.requests:
            self._first_started.setdefault(request.id, now)
            self._schedules[request.id] += 1
            self._lose(request, self._progress.pop(request.id, 0))
        worker = self._live[assignment.worker]
        worker.give(assignment, now)
        self._advance(worker, now)

    def asked(self, now: float) -> None:
        """The policy has answered; ask again when it wants to be."""
        wake_at = self._policy.wake_at(now)
        if wake_at is not None and wake_at > now:
            self._ask_soon(wake_at)

    def trace(self) -> Trace:
        """What happened so far."""
        for worker in [*self._live.values(), *self._gone]:
            name = worker.instance.name
            self._trace.tokens += worker.tokens
            self._trace.busy_s[name] = worker.busy_s
            self._trace.completed_at[name] = worker.completed_at
        self._trace.tokens += self._lost
        return self._trace

    def _next_event_at(self) -> float:
        while self._events and self._event_of.get(self._events[0][2]) != self._events[0][1]:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else math.inf

    def _advance(self, worker: SimulatedWorker, now: float) -> None:
        for outcome in worker.advance(now):
            self._learn(worker, outcome, now)
        self._schedule(worker, now)

    def _schedule(self, worker: SimulatedWorker, now: float) -> None:
        name = worker.instance.name
        self._counted += 1
        self._event_of[name] = self._counted
        at = min(max(now, worker.next_at()), worker.instance.leaves_at)
        if at < math.inf:
            heapq.heappush(self._events, (at, self._counted, name))
        if self._policy.mode == "batch":
            described = self._described[name] = worker.describe(now)
            if described.idle:
                self._idle.add(name)
                self._ask_soon(now)
            else:
                self._idle.discard(name)

    def _learn(self, worker: SimulatedWorker, outcome: Outcome, now: float) -> None:
        """Record one outcome and tell the policy."""
        name = worker.instance.name
        match outcome:
            case RequestDone(request, generated):
                started_at, schedules = self._first_started.pop(request.id), self._schedules.pop(request.id)
                self._trace.answers[request.id] = SimulatedAnswer(
                    request.id, request.arrived_at, started_at, now, generated, schedules, name
                )
                tau = self._judge.tau(request.predicted, generated)
                if tau is not None:
                    self._policy.set_rank_correlation(tau)
                self._ask_soon(now)
            case Requeued(request, preempted):
                self._trace.preempted += preempted
                self._progress[request.id] = request.generated
                self._policy.add(request, now)
                self._ask_soon(now)
            case StaticBatchDone(assignment, started_at, run):
                self._trace.batches.append(
                    BatchRun(
                        name,
                        tuple(request.id for request in assignment.requests),
                        started_at,
                        now,
                        run.length,
                        run.iterations,
                        assignment.estimated_s,
                        run.out_of_memory,
                        joined=False,
                    )
                )
                if not run.out_of_memory:
                    self._policy.finished(assignment, now)
                self._ask_soon(now)
            case RowsJoined(assignment, at, length):
                ids = tuple(request.id for request in assignment.requests)
                self._trace.batches.append(
                    BatchRun(name, ids, now, at, length, 0, assignment.estimated_s, out_of_memory=False, joined=True)
                )
            case _:  # BeyondMemory
                self._trace.out_of_memory += 1
                first, *more = outcome.assignment.requests
                if not more and self._fits_nowhere(first):
                    self._trace.failed[first.id] = now
                else:
                    self._policy.out_of_memory(outcome.assignment, now)

    def _fits_nowhere(self, request: Request) -> bool:
        return request.length + self._totals[request.id] > self._largest_tokens

    def _leave(self, worker: SimulatedWorker, now: float) -> None:
        """A worker is gone; its requests come back as they were assigned."""
        name = worker.instance.name
        del self._live[name], self._event_of[name]
        self._described.pop(name, None)
        self._idle.discard(name)
        self._gone.append(worker)
        for request, generated in worker.abandon():
            self._lose(request, generated)
            self._policy.add(request, now)
        self._ask_soon(now)

    def _lose(self, kept: Request, generated: int) -> None:
        """Tokens beyond those that a request keeps were generated in vain."""
        lost = generated - kept.generated
        if lost > 0:
            self._lost += Tokens(valid=-lost, invalid=lost, useful_reads=-reads(kept.prefill, lost))

    def _ask_soon(self, at: float) -> None:
        tick_at = math.ceil(at / self._tick_s - ROUNDING_S) * self._tick_s if self._tick_s else at
        self._ask_at = min(self._ask_at, max(tick_at, at))
