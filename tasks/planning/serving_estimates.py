"""Serving times of each worker: the trainer's estimator of whole batches, or the curves that the worker learned.

Where rows join and leave, a batch's seconds say little about the next one's, and no estimator is fitted to them. There
the curves count that workers fit to their own steps, those of one model put together as far as they agree. Where
batches run to completion, a worker's own are what the trainer's estimator corrects.
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
        """Load the active version if it is not the one in use; if it cannot be read, the last one that can."""
        if version == self._version:
            return
        published = load_active(connection, "serving_time") if version else None
        self._version = published.version if published else None
        self._times = published.model if published else ServingTimes()
        self._of_worker.clear()

    def pool(self, live: Iterable[LiveWorker]) -> None:
        """Put together what these workers have learned of their steps, anew if it has changed."""
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
        """How long batches take on this worker; where rows join and leave (`joins`), by what `pool` put together."""
        if joins and (pooled := self._pooled.get((worker.model, worker.name))):
            return pooled
        key = (worker.name, worker.model, repr(worker.curves), joins)
        if key not in self._of_worker:
            # what is learned of one worker may change every few seconds
            self._of_worker = {other: times for other, times in self._of_worker.items() if other[0] != worker.name}
            curves = worker.curves.curves if worker.curves else None
            learned = curves if joins else None
            self._of_worker[key] = learned or self._times.of(worker.name, worker.model, curves)
        return self._of_worker[key]
