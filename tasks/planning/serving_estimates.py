"""Serving times of each worker: the trainer's published estimators, else the worker's own profile."""

import structlog
from sqlalchemy import Connection

from learning.serving_time import ServingTimes
from learning.store import DigestMismatch, NotStorable, load
from models import model_versions
from models.live_fleet import LiveWorker
from scheduling.costs import ServingCurves, ServingTime

log = structlog.get_logger()


class ServingEstimates:
    """One estimator object a worker for as long as nothing changes, because policies keep tables by it."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._times = ServingTimes()
        self._known: dict[tuple[str, str, str], ServingTime] = {}

    def follow(self, connection: Connection, version: str | None) -> None:
        """Load the published version if it is another than the one in use; one that cannot be read changes nothing."""
        if version == self._version:
            return
        self._version = version
        published = model_versions.active_version(connection, "serving_time") if version else None
        try:
            self._times = load(published.stored, published.sha256) if published else ServingTimes()
        except (DigestMismatch, NotStorable) as error:
            log.error("serving times not loaded", version=version, error=str(error))
            return
        self._known.clear()

    def of(self, worker: LiveWorker) -> ServingTime:
        """How long batches take on this worker."""
        key = (worker.name, worker.model, repr(worker.curves))
        if key not in self._known:
            self._known[key] = self._times.of(worker.name, worker.model, measured_curves(worker))
        return self._known[key]


def measured_curves(worker: LiveWorker) -> ServingCurves | None:
    """The worker's measured curves."""
    if worker.curves is None:
        return None
    return ServingCurves(tuple(worker.curves["prefill"]), tuple(worker.curves["decode"]))
