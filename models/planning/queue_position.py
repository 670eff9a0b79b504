"""A request's position in the queue and its ETA, from the planner's last snapshot of the queue.

Without a recent snapshot, or without a worker of its model, a queued request has no position and no ETA.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from models.client_requests import RequestView
from models.planning.queue_snapshot import QueueSnapshot, instant
from models.tables import RequestStatus, StoredBatch, StoredRequest


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A request's position in the order of service (1 is next), and the expected time of its answer, if known.

    Nine of ten answers should come between `low_at` and `high_at`.
    """

    position: int | None = None
    eta_at: datetime | None = None
    low_at: datetime | None = None
    high_at: datetime | None = None

    def not_before(self, now: datetime) -> "QueuePlace":
        """Returns this place with no instant in the past, and with the ETA within its interval."""
        eta_at, low_at, high_at = (
            None if at is None else max(at, now) for at in (self.eta_at, self.low_at, self.high_at)
        )
        if eta_at is not None and low_at is not None and high_at is not None:
            eta_at = min(max(eta_at, low_at), high_at)
        return QueuePlace(self.position, eta_at, low_at, high_at)


def place_in_queue(view: RequestView, snapshot: QueueSnapshot | None) -> QueuePlace:
    """Returns the request's position, ETA and interval; no instant is earlier than `view.now`.

    A running request is expected as the last forecast says, else at its batch's start plus the estimated serving time.
    A queued one is expected as the last forecast says, else at the end of its waiting batch. If it came after the
    snapshot, it is expected at the ETA given at submission, else at the end of the backlog plus one typical batch. The
    interval is the forecast's, else the one given at submission. A final request has neither.
    """
    request = view.request
    if request.status is RequestStatus.in_progress:
        forecast = _forecast(request.id, snapshot) if snapshot else None
        running = forecast is not None and forecast.position is None
        return (forecast if forecast is not None and running else _in_batch(view)).not_before(view.now)
    if request.status is not RequestStatus.queued or snapshot is None or request.served_by in snapshot.unserved:
        return QueuePlace()
    listed = _waiting_place(request, snapshot)
    if listed is not None and listed.low_at is not None:
        return listed.not_before(view.now)
    eta_at = request.eta_at or snapshot.at + timedelta(seconds=snapshot.backlog_s + snapshot.typical_s)
    place = listed or QueuePlace(None, eta_at)
    return replace(place, low_at=request.eta_low_at, high_at=request.eta_high_at).not_before(view.now)


def _waiting_place(request: StoredRequest, snapshot: QueueSnapshot) -> QueuePlace | None:
    """Returns a waiting request's place by its forecast, else by its waiting batch, else behind all that have one."""
    place = _forecast(request.id, snapshot)
    if place is not None and place.position is not None:
        return place
    if request.id in snapshot.batch_places:
        position, ends_s = snapshot.batch_places[request.id]
        return QueuePlace(position, snapshot.at + timedelta(seconds=ends_s))
    forecast = snapshot.forecasts.get(request.served_by)
    if forecast is None or forecast.behind is None or request.arrived_at >= snapshot.at:
        return None
    return QueuePlace(None, *(instant(forecast, seconds) for seconds in forecast.behind[1:]))


def _forecast(request_id: str, snapshot: QueueSnapshot) -> QueuePlace | None:
    for forecast in snapshot.forecasts.values():
        if request_id in forecast.jobs:
            place, *seconds = forecast.jobs[request_id]
            return QueuePlace(place, *(instant(forecast, some) for some in seconds))
    return None


def _in_batch(view: RequestView) -> QueuePlace:
    request, batch = view.request, view.batch
    if batch is None:
        return QueuePlace()
    ends_at = (batch.started_at or batch.assigned_at) + timedelta(seconds=batch.estimated_s * _share(request, batch))
    return QueuePlace(None, ends_at, request.eta_low_at, request.eta_high_at)


def _share(request: StoredRequest, batch: StoredBatch) -> float:
    """Returns the share of the batch's serving time after which this request ends: 1 unless rows leave one by one."""
    if not batch.joins or not request.predicted_tokens:
        return 1.0
    return min(1.0, request.predicted_tokens / max(1, batch.predicted_generation_length))
