"""Estimates each worker's serving times by the trainer's estimator or the worker's own curves; averages recent ones.

Where rows join and leave, the seconds of a batch say little about the next batch, so no estimator is fitted to them.
The estimate then comes from the curves that workers fit to their own steps, averaged over one model's workers as far as
the curves agree. Where batches run to completion, the trainer's estimator corrects the worker's own curves.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext

from sqlalchemy import Connection

from learning.estimators.serving_time import ServingTimes
from learning.step_costs import pooled_curves
from models.planning import live_fleet
from models.registered_workers import RegisteredWorker
from processes.published_models import load_active
from scheduling.costs import LearnedCurves, ServingCurves, ServingTime, WorkerCurves

# Weight of the newest batch in the moving average: about the last ten batches count. Not tuned.
NEWEST_WEIGHT = 0.1


class ServingEstimates:
    """Keeps one estimator object for a worker until its costs change, because policies cache tables by that object."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._times = ServingTimes()
        self._of_worker: dict[tuple[str, str, WorkerCurves | None, bool], ServingTime] = {}
        self._learned: dict[tuple[str, str], LearnedCurves] = {}  # by model and worker's name
        self._pooled: dict[tuple[str, str], ServingCurves] = {}

    def adopt(self, connection: Connection, version: str | None) -> None:
        """Loads this version unless it is in use; if it cannot be read, loads the newest readable one."""
        if version == self._version:
            return
        published = load_active(lambda: nullcontext(connection), "serving_time") if version else None
        self._version = published.version if published else None
        self._times = published.model if published else ServingTimes()
        self._of_worker.clear()

    def pool(self, live: Iterable[RegisteredWorker]) -> None:
        """Averages the learned curves of each model's workers, if any of the curves has changed."""
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

    def serving_time_for(self, worker: RegisteredWorker, joins: bool = False) -> ServingTime:
        """Returns the worker's estimator; for rows that join and leave (`joins`), its learned curves if it has any."""
        if joins and (pooled := self._pooled.get((worker.model, worker.name))):
            return pooled
        key = (worker.name, worker.model, worker.curves, joins)
        if key not in self._of_worker:
            # a worker's learned curves may change every few seconds
            self._of_worker = {other: times for other, times in self._of_worker.items() if other[0] != worker.name}
            curves = worker.curves.curves if worker.curves else None
            learned = curves if joins else None
            self._of_worker[key] = learned or self._times.serving_time_for(worker.name, worker.model, curves)
        return self._of_worker[key]


class RecentServingTimes:
    """The moving average of the serving times of finished batches, on which the ETAs of an idle service are based."""

    def __init__(self) -> None:
        self._ended: list[int] = []  # batches whose serving times were not read yet
        self._mean_s = 0.0

    def add(self, batch_ids: Iterable[int]) -> None:
        """Adds batches that have ended; their serving times are read by `mean_s`."""
        self._ended += batch_ids

    def mean_s(self, connection: Connection) -> float:
        """Returns the average in seconds, or 0 before the first batch finished."""
        times = live_fleet.serving_times(connection, self._ended) if self._ended else []
        self._ended.clear()
        for serving_s in times:
            weight = NEWEST_WEIGHT if self._mean_s else 1.0
            self._mean_s += weight * (serving_s - self._mean_s)
        return self._mean_s
