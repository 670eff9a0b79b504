"""Finds a request's position in the queue and its ETA in the planner's last snapshot of the queue.

Without a recent snapshot, or without a worker of its model, a queued request has no position and no ETA.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from models.client_requests import RequestView
from models.planning.queue_snapshot import AnswerForecast, ModelForecast, QueueSnapshot, instant
from models.tables import RequestStatus, StoredBatch, StoredRequest
from scheduling.length_distributions import drawn_length
from scheduling.request import Request, RowLength


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A request's position in the order of service (1 is next), and the expected time of its answer, if known.

    Nine of ten answers should come between `low_at` and `high_at`. `length` is a running row's, as predicted last.
    """

    position: int | None = None
    eta_at: datetime | None = None
    low_at: datetime | None = None
    high_at: datetime | None = None
    length: RowLength | None = field(default=None, kw_only=True)

    def not_before(self, now: datetime) -> "QueuePlace":
        """Returns this place with no instant in the past, and with the ETA within its interval."""
        eta_at, low_at, high_at = (
            None if at is None else max(at, now) for at in (self.eta_at, self.low_at, self.high_at)
        )
        if eta_at is not None and low_at is not None and high_at is not None:
            eta_at = min(max(eta_at, low_at), high_at)
        return QueuePlace(self.position, eta_at, low_at, high_at, length=self.length)


def place_in_queue(view: RequestView, snapshot: QueueSnapshot | None) -> QueuePlace:
    """Returns the request's position, ETA and interval; no instant is earlier than `view.now`.

    The ETA is the last forecast's. Without a forecast, a running request's ETA is its batch's start plus the estimated
    serving time, and a queued request's ETA is the end of its waiting batch. A queued request that is in no such batch
    gets the ETA given at submission, else the end of the backlog plus one typical batch. The interval is the
    forecast's, else the one given at submission. A final request has no position, ETA or interval.
    Off-peak work outside its hours has an ETA behind their next beginning, and no interval. Nobody knows when a spent
    budget is raised, so that a request that waits for one has no ETA. What has begun goes on in both cases.
    """
    request = view.request
    if request.status is RequestStatus.in_progress:
        forecast = _forecast(request.id, snapshot) if snapshot else None
        running = forecast is not None and forecast.position is None
        place = forecast if forecast is not None and running else _in_batch(view)
        return _with_interval(place, told_at_submission(request)).not_before(view.now)
    if request.status is not RequestStatus.queued or snapshot is None:
        return QueuePlace()
    decisions = snapshot.decisions
    begun = view.tokens_so_far > 0
    if not begun and (request.tenant in decisions.spent_tenants or request.job_id in decisions.spent_jobs):
        return QueuePlace()
    if not begun and request.tier == "off_peak" and decisions.off_peak_at is not None:
        opens_at = datetime.fromtimestamp(decisions.off_peak_at + snapshot.queue.typical_s, UTC)
        return QueuePlace(None, opens_at).not_before(view.now)
    if request.served_by in snapshot.unserved:
        return QueuePlace()
    told = told_at_submission(request)
    eta_at = told.eta_at or snapshot.at + timedelta(seconds=snapshot.queue.backlog_s + snapshot.queue.typical_s)
    place = _waiting_place(request, snapshot) or QueuePlace(None, eta_at)
    return _with_interval(place, told).not_before(view.now)


def place_in_stream(view: RequestView, snapshot: QueueSnapshot | None) -> QueuePlace:
    """Returns the place of a request by the last forecast alone, for a view whose status may be an earlier one."""
    told = told_at_submission(view.request)
    place = _forecast(view.request.id, snapshot) if snapshot else None
    return _with_interval(place or told, told).not_before(view.now)


def tokens_left(request: StoredRequest, place: QueuePlace, generated: int) -> tuple[int, int, int] | None:
    """Returns the median, the 5 % and the 95 % quantile of the tokens that an answer still gets.

    None once it has ended, and while its length is not predicted.
    """
    length, predicted, upper = place.length, request.predicted_tokens, request.predicted_upper_tokens
    if length is None and predicted is not None and upper is not None:
        length = RowLength(0, predicted, upper)
    if request.status.final or length is None:
        return None
    asked = length.of(Request(request.id, 0.0, 1, request.limit_tokens, 1, 1))
    median, low, high = (drawn_length(asked, level, max(generated, length.at)) for level in (0.5, 0.05, 0.95))
    return median, low, high


def told_at_submission(request: StoredRequest) -> QueuePlace:
    """Returns the ETA and the interval that were given at submission, without a position."""
    if request.eta is None:
        return QueuePlace()
    seconds = (request.eta[name] for name in ("eta_s", "low_s", "high_s"))
    return QueuePlace(None, *(None if s is None else request.arrived_at + timedelta(seconds=s) for s in seconds))


def _with_interval(place: QueuePlace, told: QueuePlace) -> QueuePlace:
    """Returns the place with its ETA's own interval, else with the one that was given at submission."""
    if place.eta_at is None or place.low_at is not None:
        return place
    return replace(place, low_at=told.low_at, high_at=told.high_at)


def _waiting_place(request: StoredRequest, snapshot: QueueSnapshot) -> QueuePlace | None:
    """Returns a waiting request's place by its forecast, else by its waiting batch, else behind all named requests."""
    place = _forecast(request.id, snapshot)
    if place is not None and place.position is not None:
        return place
    if request.id in snapshot.queue.places:
        position, ends_s = snapshot.queue.places[request.id]
        return QueuePlace(position, snapshot.at + timedelta(seconds=ends_s))
    forecast = snapshot.forecasts.of_models.get(request.served_by)
    if forecast is None or forecast.behind is None or request.arrived_at >= snapshot.at:
        return None
    return _expected(forecast, forecast.behind._replace(place=None))


def _forecast(request_id: str, snapshot: QueueSnapshot) -> QueuePlace | None:
    for forecast in snapshot.forecasts.of_models.values():
        if request_id in forecast.jobs:
            return _expected(forecast, forecast.jobs[request_id])
    return None


def _expected(forecast: ModelForecast, told: AnswerForecast) -> QueuePlace:
    instants = (None if some is None else instant(forecast, some) for some in (told.seconds, told.low_s, told.high_s))
    return QueuePlace(told.place, *instants, length=told.length)


def _in_batch(view: RequestView) -> QueuePlace:
    request, batch = view.request, view.batch
    if batch is None:
        return QueuePlace()
    ends_at = (batch.started_at or batch.assigned_at) + timedelta(seconds=batch.estimated_s * _share(request, batch))
    return QueuePlace(None, ends_at)


def _share(request: StoredRequest, batch: StoredBatch) -> float:
    """Returns the share of the batch's serving time after which this request ends: 1 unless rows leave one by one."""
    if not batch.joins or not request.predicted_tokens:
        return 1.0
    return min(1.0, request.predicted_tokens / max(1, batch.predicted_generation_length))
