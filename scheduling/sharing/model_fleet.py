"""Computes the rate at which each worker of a fleet answers requests with its model, or would with another model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from scheduling.policy import Worker
from scheduling.sharing.background.deadlines import Work, most_rows, rows_per_s
from scheduling.sharing.model_queue import ModelQueue

NO_WORK, NO_QUEUE = Work(), ModelQueue()


class ModelFleet:
    """The workers at one decision, with the changes decided so far, and the queues of all models.

    Background requests do not count for a worker on which other requests run, or whose models other requests wait for.
    """

    def __init__(self, workers: Iterable[Worker], queues: Mapping[str, ModelQueue]) -> None:
        self._workers = {worker.name: worker for worker in workers}
        self._queues = queues
        self._rows = {name: (_rows(worker, False), _rows(worker, True)) for name, worker in self._workers.items()}

    def change(self, worker: Worker, model: str) -> None:
        """Count the worker among those that serve this model, and count its rows no longer."""
        self._workers[worker.name] = with_model(worker, model)
        self._rows[worker.name] = NO_WORK, NO_WORK

    def oldest_at(self, model: str, background: bool) -> float:
        """Return when the oldest background request, or the oldest other one, that waits for the model arrived."""
        return self._queue(model).oldest_at(background)

    def serves(self, model: str) -> bool:
        """Return whether any worker has the model or loads it."""
        return bool(self._serving(model))

    def is_only(self, worker: Worker) -> bool:
        """Return whether no other worker has its model or loads it, although each model could have a worker."""
        models = {model for one in self._workers.values() for model in (one.model, *one.loadable)}
        return len(self._workers) >= len(models) and len(self._serving(worker.model)) == 1

    def has_waiting(self, model: str) -> bool:
        """Return whether any request waits for the model."""
        return self._queue(model).work(True).requests > 0

    def has_work(self, worker: Worker) -> bool:
        """Return whether any request for the worker's present model waits, or any runs on the worker."""
        return not worker.idle or self.has_waiting(worker.model)

    def present_rate(self, worker: Worker) -> float:
        """Return the requests a second that the worker answers, among those that run or wait for its model."""
        serving = self._serving(worker.model)
        work = self._work(worker.model, serving, self._counts_background(worker))
        return work.requests / len(serving) / _done_s(work, serving) if work.requests else 0.0

    def rate_with(self, worker: Worker, model: str) -> float:
        """Return the requests a second that the worker would answer with another model, until all are answered.

        The rate is 0 if the model's workers would be done before the change helps, or if they are as many as the
        requests: the seconds of one request are too uncertain for a worker to change for it alone.
        """
        serving = self._serving(model)
        work = self._work(model, serving, self._counts_background(worker))
        if work.requests <= len(serving):
            return 0.0
        change_s = worker.loadable[model].change_s
        ends_s = worker.busy_s if worker.queued else min(change_s, _done_s(self._rows[worker.name][True], [worker]))
        helping = [*serving, with_model(worker, model)]
        done_s = ends_s + change_s + _done_s(work, helping)
        return work.requests / len(helping) / done_s if done_s < _done_s(work, serving) else 0.0

    def _serving(self, model: str) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.model == model]

    def _work(self, model: str, serving: Sequence[Worker], background: bool) -> Work:
        """Return the work that waits for a model, together with the work of the rows on its workers."""
        parts = [self._queue(model).work(background), *(self._rows[worker.name][background] for worker in serving)]
        return reduce(Work.together, parts)

    def _counts_background(self, worker: Worker) -> bool:
        models = {worker.model, *worker.loadable}
        return not self._rows[worker.name][False].requests and not any(
            self._queue(model).work(False).requests for model in models
        )

    def _queue(self, model: str) -> ModelQueue:
        return self._queues.get(model, NO_QUEUE)


def with_model(worker: Worker, model: str) -> Worker:
    """Return the worker as it will be after a change to the model."""
    loaded = worker.loadable[model]
    return replace(worker, model=model, memory=loaded.memory, costs=loaded.costs, rows=(), queued=0, busy_s=0.0)


def _done_s(work: Work, workers: Sequence[Worker]) -> float:
    """Return the seconds in which these workers answer this work, if all its rows have its mean lengths."""
    if not work.requests or not workers:
        return math.inf if work.requests else 0.0
    row, each = work.typical_row, math.ceil(work.requests / len(workers))
    sizes = [most_rows(worker, row, each) for worker in workers]
    rates = [rows_per_s(worker, row, size) for worker, size in zip(workers, sizes, strict=True)]
    one_row_s = min(size / rate for size, rate in zip(sizes, rates, strict=True))
    return max(one_row_s, work.requests / sum(rates))


def _rows(worker: Worker, background: bool) -> Work:
    """Return the work that is left of the worker's rows, with or without its background rows."""
    rows = [row for row in worker.rows if background or not row.request.background]
    left = [max(1, min(row.request.predicted, row.request.limit) - row.generated) for row in rows]
    prefill = sum(row.request.length + row.generated for row in rows)
    return Work(len(rows), prefill, sum(left))
