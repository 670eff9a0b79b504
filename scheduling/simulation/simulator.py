"""Simulates any policy on any workload and fleet in virtual time, with the live planner's policy objects.

The loop does what the planner does: process events, ask the policy, carry out its decisions. Nothing is stepped token
by token (see `scheduling.simulation.simulated_batch`), so a simulation's cost grows with its events.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from scheduling.policy import Assignment, Policy, RunningRow, Worker
from scheduling.rank_correlation import RankedAnswers
from scheduling.request import Request, reserve_limit
from scheduling.simulation.changing_worker import ChangingWorker
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.event_queue import DecisionTimer, Timetable, WorkerEvents
from scheduling.simulation.simulated_fleet import SimulatedFleet
from scheduling.simulation.simulated_worker import Instance, SimulatedWorker
from scheduling.simulation.trace import SimulatedAnswer, Trace, TraceRecorder
from scheduling.simulation.worker_outcomes import (
    ModelLoaded,
    Outcome,
    Preempted,
    RequestDone,
    Requeued,
    RowsJoined,
    StaticBatchDone,
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request with its true number of generated tokens, which only the simulator knows."""

    request: Request
    generation_length: int

    def __post_init__(self) -> None:
        if not self.request.generated < self.generation_length <= self.request.limit:
            raise ValueError(f"request {self.request.id} cannot generate {self.generation_length} tokens")


@dataclass(frozen=True, slots=True)
class StartedBatch:
    """A run-to-completion batch at a worker; `started_at` is None while it waits there."""

    assignment: Assignment
    started_at: float | None


def simulate(
    policy: Policy,
    arrivals: Sequence[Arrival],
    fleet: Sequence[Instance],
    costs: EngineCosts,
    seed: int,
    *,
    tick_s: float = 0.0,
    until: float = math.inf,
    goes_on: Callable[[], bool] = lambda: True,
) -> Trace:
    """Serve the arrivals; if `tick_s` is not 0, the policy decides only at its multiples, as a planner does.

    Ends when no event is left, at `until`, or once `goes_on()` is false. Requests that are then neither in `answers`
    nor in `failed` were not served. The same arguments give the same trace.
    """
    simulation = Simulation(policy, arrivals, fleet, costs, seed, tick_s)
    while (now := simulation.next_at()) <= until and now < math.inf and goes_on():
        simulation.process_events(now)
        if simulation.decision_is_due(now):
            for assignment in policy.assign(simulation.describe_workers(now), now):
                simulation.carry_out(assignment, now)
            simulation.schedule_wake_up(now)
    return simulation.trace()


class Simulation:
    """The runner's side of the contract in `scheduling.policy`, on simulated workers."""

    def __init__(
        self,
        policy: Policy,
        arrivals: Sequence[Arrival],
        fleet: Sequence[Instance],
        costs: EngineCosts,
        seed: int,
        tick_s: float,
    ) -> None:
        self._policy = policy
        self._costs = costs
        self._random = np.random.default_rng(seed)
        self._generation_lengths = {arrival.request.id: arrival.generation_length for arrival in arrivals}
        # The most tokens of a row that any worker holds with this model.
        self._largest_tokens = cache(
            lambda model: max(one.longest_row_tokens(model) for one in fleet) * (1 + costs.headroom)
        )

        requests = sorted((arrival.request for arrival in arrivals), key=lambda r: (r.arrived_at, r.id))
        instances = sorted(fleet, key=lambda instance: instance.joins_at)  # stable: equal instants keep the given order
        self._arrivals = Timetable((request.arrived_at, request) for request in requests)
        self._joins = Timetable((instance.joins_at, instance) for instance in instances)
        self._worker_events = WorkerEvents()
        self._decision = DecisionTimer(tick_s)

        self._fleet = SimulatedFleet(policy.mode)
        self._ranked_answers = RankedAnswers()
        self._recorder = TraceRecorder(requests[0].arrived_at if requests else 0.0)

    def next_at(self) -> float:
        """Return the instant of the next event or decision, or infinity if there is none."""
        return min(
            self._arrivals.next_at(), self._joins.next_at(), self._worker_events.next_at(), self._decision.next_at
        )

    def process_events(self, now: float) -> None:
        """Process joining workers, arrivals, ends of work and leaving workers, in that order."""
        for instance in self._joins.pop_due(now):
            make = ChangingWorker if instance.loadable else SimulatedWorker
            worker = make(instance, instance.engine or self._costs, self._generation_lengths, self._random)
            self._fleet.join(worker)
            self._schedule(worker, now)
            self._decision.request(now)
        for request in self._arrivals.pop_due(now):
            if request.prefill >= self._largest_tokens(request.model):
                self._recorder.failed(request, now)
            else:
                self._policy.add(request, now)
                self._decision.request(now)
        for name in self._worker_events.pop_due(now):
            if self._fleet[name].instance.leaves_at <= now:
                self._remove(name, now)
            else:
                self._advance(self._fleet[name], now)

    def decision_is_due(self, now: float) -> bool:
        """Return whether the policy should be asked now."""
        return self._decision.pop_due(now) and self._fleet.may_take_work()

    def describe_workers(self, now: float) -> list[Worker]:
        """Return the live workers as policies see them."""
        return self._fleet.describe(now)

    def carry_out(self, assignment: Assignment, now: float) -> None:
        """Give an assignment to its worker."""
        self._recorder.assigned(assignment, now)
        worker = self._fleet[assignment.worker]
        worker.accept(assignment, now)
        self._advance(worker, now)

    def resume(self, worker: str, rows: Sequence[RunningRow], batches: Sequence[StartedBatch], now: float) -> None:
        """Give a new worker its running work; batches are in the order in which they run."""
        resumed = self._fleet[worker]
        if rows:
            self._recorder.assigned(Assignment(worker, tuple(row.request for row in rows), joins=True), now)
            resumed.resume_rows(rows, now)
        for batch in batches:
            self._recorder.assigned(batch.assignment, now)
            if batch.started_at is None or resumed.next_at() < math.inf:
                resumed.accept(batch.assignment, now)
            else:
                resumed.resume_batch(batch.assignment, batch.started_at, now)
        self._schedule(resumed, now)

    def will_generate(self, lengths: Mapping[str, int]) -> None:
        """Set the true generation lengths of requests that already wait in the policy or run."""
        self._generation_lengths.update(lengths)

    def schedule_wake_up(self, now: float) -> None:
        """After a decision, schedule the next one for the instant at which the policy wants to be asked."""
        wake_at = self._policy.wake_at(now)
        if wake_at is not None and wake_at > now:
            self._decision.request(wake_at)

    @property
    def answers(self) -> Mapping[str, SimulatedAnswer]:
        """Return the answers so far, by the request's id."""
        return self._recorder.answers

    def trace(self) -> Trace:
        """Return the trace; call it once, at the end."""
        return self._recorder.finish(self._fleet)

    def _advance(self, worker: SimulatedWorker, now: float) -> None:
        for outcome in worker.advance(now):
            self._report(outcome, worker.instance.name, now)
        self._schedule(worker, now)

    def _schedule(self, worker: SimulatedWorker, now: float) -> None:
        """Schedule a worker's next event after its state has changed."""
        at = min(max(now, worker.next_at()), worker.instance.leaves_at)
        self._worker_events.schedule(worker.instance.name, at)
        if self._fleet.refresh(worker, now):
            self._decision.request(now)

    def _report(self, outcome: Outcome, worker: str, now: float) -> None:
        """Record an outcome and tell the policy."""
        match outcome:
            case RequestDone(request, generated):
                self._recorder.answered(outcome, worker, now)
                rank_correlation = self._ranked_answers.update(request.length, request.predicted, generated)
                if rank_correlation is not None:
                    self._policy.set_rank_correlation(rank_correlation)
                self._decision.request(now)
            case Requeued(request, _):
                self._recorder.requeued(outcome)
                self._policy.add(request, now)
                self._decision.request(now)
            case Preempted():
                self._recorder.row_preempted()
            case StaticBatchDone():
                self._recorder.static_batch_done(outcome, worker, now)
                self._decision.request(now)
            case RowsJoined():
                self._recorder.rows_joined(outcome, worker, now)
            case ModelLoaded():
                self._recorder.model_loaded(outcome, worker, now)
                self._decision.request(now)
            case _:  # RanOutOfMemory
                self._recorder.ran_out_of_memory()
                first = outcome.assignment.requests[0]
                if not outcome.alone:
                    self._policy.out_of_memory(outcome.assignment, now)
                elif self._fits_nowhere(first):
                    self._recorder.failed(first, now)
                else:
                    held = self._fleet[worker].instance.memory.longest_row_tokens
                    self._policy.add(replace(reserve_limit(first), outgrew_tokens=held), now)

    def _fits_nowhere(self, request: Request) -> bool:
        return request.length + self._generation_lengths[request.id] > self._largest_tokens(request.model)

    def _remove(self, name: str, now: float) -> None:
        """Remove a worker; its requests wait again as they were assigned."""
        self._worker_events.cancel(name)
        for request, generated in self._fleet.leave(name).abandon():
            self._recorder.discarded(request, generated)
            self._policy.add(request, now)
        self._decision.request(now)
