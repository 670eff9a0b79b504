"""Serving times of each worker: the trainer's estimator of whole batches, or the curves that the worker learned.

Under continuous batching a batch's seconds say little about the next one's, so no estimator is fitted to them. There
the curves that workers fit to their own steps are used, pooled over the model's workers as far as they agree. For
run-to-completion batches the trainer's estimator corrects the worker's own curves.
"""

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import Connection

from learning.serving_time import ServingTimes
from learning.step_costs import pooled_curves
from models.planning.live_fleet import LiveWorker
from scheduling.costs import LearnedCurves, ServingCurves, ServingTime
from tasks.published_models import load_active


class ServingEstimates:
    """A worker gets the same estimator object until something changes, because policies cache tables by that object."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._times = ServingTimes()
        self._of_worker: dict[tuple[str, str, str, bool], ServingTime] = {}
        self._learned: dict[tuple[str, str], LearnedCurves] = {}  # by model and worker's name
        self._pooled: dict[tuple[str, str], ServingCurves] = {}

    def adopt(self, connection: Connection, version: str | None) -> None:
        """Load the active version unless it is in use; if it is unreadable, load the last readable one."""
        if version == self._version:
            return
        published = load_active(connection, "serving_time") if version else None
        self._version = published.version if published else None
        self._times = published.model if published else ServingTimes()
        self._of_worker.clear()

    def pool(self, live: Iterable[LiveWorker]) -> None:
        """Pool the costs that these workers have learned from their steps, if they have changed."""
        learned = {
            (worker.model, worker.name): worker.curves for worker in live if isinstance(worker.curves, LearnedCurves)
        }
        if learned == self._learned:
            return
        self._learned, self._pooled = learned, {}
        of_models: defaultdict[str, dict[str, LearnedCurves]] = defaultdict(dict)
        for (model, name), curves in learned.items():
            of_models[model][name] = curves
        for model, of_model in of_models.items():
            self._pooled |= {(model, name): curves for name, curves in pooled_curves(of_model).items()}

    def of(self, worker: LiveWorker, joins: bool = False) -> ServingTime:
        """Return the estimator for this worker; for continuous batches (`joins`) the curves of `pool`."""
        if joins and (pooled := self._pooled.get((worker.model, worker.name))):
            return pooled
        key = (worker.name, worker.model, repr(worker.curves), joins)
        if key not in self._of_worker:
            # a worker's learned curves may change every few seconds
            self._of_worker = {other: times for other, times in self._of_worker.items() if other[0] != worker.name}
            curves = worker.curves.curves if worker.curves else None
            learned = curves if joins else None
            self._of_worker[key] = learned or self._times.of(worker.name, worker.model, curves)
        return self._of_worker[key]
