"""Serving times of each worker: from the trainer's published estimator, else from the worker's own profile."""

from sqlalchemy import Connection

from learning.serving_time import ServingTimes
from models.live_fleet import LiveWorker
from scheduling.costs import ServingCurves, ServingTime
from tasks.published_models import load_active


class ServingEstimates:
    """A worker gets the same estimator object until something changes, because policies cache tables by that object."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._times = ServingTimes()
        self._of_worker: dict[tuple[str, str, str], ServingTime] = {}

    def adopt(self, connection: Connection, version: str | None) -> None:
        """Load the active version if it is not the one in use; if it cannot be read, the last one that can."""
        if version == self._version:
            return
        published = load_active(connection, "serving_time") if version else None
        self._version = published.version if published else None
        self._times = published.model if published else ServingTimes()
        self._of_worker.clear()

    def of(self, worker: LiveWorker) -> ServingTime:
        """How long batches take on this worker."""
        key = (worker.name, worker.model, repr(worker.curves))
        if key not in self._of_worker:
            self._of_worker[key] = self._times.of(worker.name, worker.model, measured_curves(worker))
        return self._of_worker[key]


def measured_curves(worker: LiveWorker) -> ServingCurves | None:
    """The worker's own profile; None if it has none."""
    if worker.curves is None:
        return None
    return ServingCurves(tuple(worker.curves["prefill"]), tuple(worker.curves["decode"]))
