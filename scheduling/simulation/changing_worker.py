"""A simulated worker that can load other models: it finishes or returns its work, loads, and serves the other model."""

import math
from dataclasses import replace

from scheduling.policy import Assignment, Worker
from scheduling.simulation.simulated_worker import SimulatedWorker
from scheduling.simulation.worker_outcomes import ModelLoaded, Outcome, Requeued


class ChangingWorker(SimulatedWorker):
    """Changes its model: takes no more work, lets its rows run on until they must leave, then loads the wanted one."""

    _wanted: str | None = None
    _rows_leave_at = _began_at = 0.0
    _rows_leave = False
    _loaded_at = math.inf  # the instant at which the present loading ends; infinity if it loads nothing

    def describe(self, now: float) -> Worker:
        """Return the worker as policies see it."""
        description = super().describe(now)
        return replace(description, model=self._wanted, changing=True) if self._wanted is not None else description

    def accept(self, assignment: Assignment, now: float) -> None:
        """Take an assignment, or begin a change of model."""
        if assignment.loads is None:
            return super().accept(assignment, now)
        self._description = None
        self._wanted = assignment.loads
        self._rows_leave, self._rows_leave_at = False, now + self.instance.loadable[assignment.loads].change_s

    def next_at(self) -> float:
        """Return the instant of the next event, or infinity if there is none."""
        if self._wanted is None:
            return super().next_at()
        if self._loaded_at < math.inf:
            return self._loaded_at
        return super().next_at() if self._rows_leave else min(super().next_at(), self._rows_leave_at)

    def advance(self, now: float) -> list[Outcome]:
        """Return the outcomes up to `now`."""
        if self._loaded_at < math.inf:
            return [self._loaded()] if self._loaded_at <= now else []
        outcomes = super().advance(now)
        if self._wanted is None:
            return outcomes
        self._rows_leave = now >= self._rows_leave_at
        if self._rows_leave:
            outcomes += [Requeued(self._batch.leave(one), preempted=True) for one in list(self._batch.rows)]
            outcomes += [Requeued(row.request, preempted=True) for row in self._preempted]
            self._preempted = []
        if super().next_at() == math.inf:
            self._began_at, self._loaded_at = now, now + self.instance.loadable[self._wanted].change_s
        return outcomes

    def _loaded(self) -> ModelLoaded:
        loaded = ModelLoaded(str(self._wanted), self._began_at)
        one = self.instance.loadable[loaded.model]
        self._tokens += self._batch.tokens
        self._busy_s += self._batch.busy_s
        self.instance = replace(self.instance, model=loaded.model, memory=one.memory)
        self.costs = one.engine.faster(self.instance.speed)
        self._estimated_costs = self.costs.curves
        self._use_memory(one.memory)
        self._batch.at = self._loaded_at
        self._description, self._wanted, self._loaded_at = None, None, math.inf
        return loaded
