"""Decides which model each worker loads, if workers can load several models, under any policy.

Every model has a policy of its own, which sees the workers that have the model loaded. A worker changes to the model
whose requests it would then answer at the highest rate, the seconds of the change included, if that is more than the
rate at which it answers requests of its present model. So few waiting requests do not pay for a change, many do, and
the last rows of a model do not keep a worker from a long queue.

While there are as many workers as models, the only worker of a model that was asked for within the last PATIENCE times
the seconds of a change does not help another model's workers: a client that alternates between models need not wait.

No thrashing: a worker leaves a model that has work only after LEAST_STAY times the seconds of a change. So changes away
from work take at most 1 / (1 + LEAST_STAY) of the time.

No model starves. A model that no worker has is overdue once its oldest request has waited PATIENCE times the seconds of
a change. The next worker that has stayed LONG_STAY times the seconds of a change then goes to the overdue model that
was served least recently, whatever the rates. Background requests wait BACKGROUND_PATIENCE times as long; before, they
count only for a worker that has no other request to serve.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain

from scheduling.outer_policy import PolicyOfEach
from scheduling.policy import Assignment, WaitingBatch, Worker
from scheduling.request import Request
from scheduling.sharing.isolation import IsolatingPolicy
from scheduling.sharing.model_fleet import ModelFleet
from scheduling.sharing.model_queue import ModelQueue, WaitsBehind

# Multiples of the seconds of a change; see the module's docstring. Simulated in docs/results/model_changes.md.
LEAST_STAY, LONG_STAY, PATIENCE = 4.0, 8.0, 20.0
BACKGROUND_PATIENCE = 10.0


class ModelChanges(PolicyOfEach[str, IsolatingPolicy]):
    """One policy for each model, all of one kind; an assignment that `loads` a model changes a worker to it."""

    def __init__(self, make_policy: Callable[[], IsolatingPolicy]) -> None:
        """Make no policy yet; each one is made when a request for its model or a worker with its rows comes."""
        super().__init__(make_policy)
        self._queues: dict[str, ModelQueue] = {}
        self._rows_return = self.mode == "continuous"  # whether a changing worker's rows come back; batches end first
        self._since: dict[str, tuple[str, float]] = {}  # by worker: its model, and the instant since which it has it
        self._served_at: dict[str, float] = {}  # by model: the last instant at which a worker had it
        self._asked_at: dict[str, float] = {}  # by model: the last instant at which it was loaded or a worker had work
        self._wake_at: float | None = None

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._count((request,)).add(request, now)

    def isolate(self, suspects: Sequence[Request]) -> None:
        """Let requests of one model that were served together when an engine failed wait apart, in halves."""
        self._count(suspects).isolate(suspects)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to its model's policy."""
        self._count(assignment.requests).out_of_memory(assignment, now)

    def _count(self, requests: Sequence[Request]) -> IsolatingPolicy:
        """Count requests of one model as waiting; return the model's policy."""
        model = requests[0].model
        queue = self._queues.setdefault(model, ModelQueue())
        for request in requests:
            queue.add(request)
        return self.policy_for(model)

    def waiting_for(self, model: str) -> Collection[WaitsBehind]:
        """Return the requests that wait for a model."""
        return self._queues[model].waiting if model in self._queues else ()

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        removed = (model for model, queue in self._queues.items() if queue.remove(request_id))
        return any(self.policies[model].discard(request_id) for model in removed)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Decide which workers change their model, and let each model's policy assign to the others."""
        for worker in workers:
            if worker.rows:
                self.policy_for(worker.model)  # the rows of an earlier planner, too, may move before a request comes
        leaving = {worker.name: worker for worker in workers if worker.changing}
        assignments: list[Assignment] = []
        self._wake_at = None
        if any(worker.loadable for worker in workers):
            for worker, model in self._changes(workers, now):
                leaving[worker.name] = worker
                if worker.idle or self._rows_return:
                    assignments.append(Assignment(worker.name, (), loads=model))
        for model, policy in self.policies.items():
            serving = [worker for worker in workers if worker.model == model and worker.name not in leaving]
            if serving and (self.mode != "batch" or any(worker.idle for worker in serving)):
                assignments += policy.assign(serving, now)
        for request in chain.from_iterable(assignment.requests for assignment in assignments):
            self._queues[request.model].remove(request.id)
        return assignments

    def _changes(self, workers: Sequence[Worker], now: float) -> Iterator[tuple[Worker, str]]:
        """Yield the workers that should change, each with its next model; those with the lowest rates choose first."""
        fleet = ModelFleet(workers, self._queues)
        for worker in workers:
            if worker.changing or self._since.get(worker.name, ("", now))[0] != worker.model:
                self._since[worker.name] = worker.model, now
            self._served_at[worker.model] = now
            if fleet.has_work(worker) or self.loaded_at(worker) == now:
                self._asked_at[worker.model] = now
        for worker in sorted(workers, key=lambda worker: (fleet.present_rate(worker), fleet.is_only(worker))):
            if worker.loadable and not worker.changing:
                model = self.next_model(worker, fleet, now)
                if model is not None:
                    fleet.change(worker, model)
                    yield worker, model

    def next_model(self, worker: Worker, fleet: ModelFleet, now: float) -> str | None:
        """Return the model that this worker should change to, or None if it should keep its own."""
        loaded_at = self.loaded_at(worker)
        asked_at = self._asked_at[worker.model] if fleet.is_only(worker) else -math.inf
        stays_s = now - loaded_at if fleet.has_work(worker) else math.inf
        best, best_rate, instants = None, fleet.present_rate(worker), list[float]()
        overdue: list[str] = []
        for model, loadable in worker.loadable.items():
            if model == worker.model or not fleet.has_waiting(model):
                continue
            kept_until = asked_at + PATIENCE * loadable.change_s
            if now < kept_until and fleet.serves(model):
                instants.append(kept_until)
                continue
            overdue_at = _overdue_at(worker, model, fleet)
            if now >= overdue_at and stays_s >= LONG_STAY * loadable.change_s and not fleet.serves(model):
                overdue.append(model)
            if stays_s >= LEAST_STAY * loadable.change_s and (rate := fleet.rate_with(worker, model)) > best_rate:
                best, best_rate = model, rate
            stayed_at = [loaded_at + stay * loadable.change_s for stay in (LEAST_STAY, LONG_STAY)]
            instants += [instant for instant in (overdue_at, *stayed_at) if instant > now]
        self._wake_at = min([*instants, *([] if self._wake_at is None else [self._wake_at])], default=None)
        return min(overdue, key=lambda model: self._served_at.get(model, -math.inf), default=best)

    def loaded_at(self, worker: Worker) -> float:
        """Return the instant since which the worker has its present model, as far as this policy has seen it."""
        return self._since[worker.name][1]

    def wake_at(self, now: float) -> float | None:
        """Return when a policy wants to be asked again, or when a worker may change its model."""
        instants = (super().wake_at(now), self._wake_at)
        return min((at for at in instants if at is not None), default=None)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches of each model in turn."""
        return chain.from_iterable(policy.waiting(now) for policy in self._inner())


def _overdue_at(worker: Worker, model: str, fleet: ModelFleet) -> float:
    """Return when the oldest request for a model has waited for too long, or infinity if none waits."""
    patience_s = PATIENCE * worker.loadable[model].change_s
    oldest_at = fleet.oldest_at(model, False), fleet.oldest_at(model, True)
    return min(oldest_at[0] + patience_s, oldest_at[1] + BACKGROUND_PATIENCE * patience_s)
