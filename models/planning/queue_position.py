"""A request's position in the queue and its ETA, from the planner's last snapshot of the queue.

The planner writes the snapshot to `service_state['planner']` at most twice a second, with its last forecast of running
and waiting requests. Without a recent snapshot there is no position and no ETA for a queued request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.client_requests import RequestView
from models.service_tables import ServiceState
from models.tables import RequestStatus, StoredBatch, StoredRequest
from scheduling.forecast.response_line import ResponseLine

# A snapshot older than this is ignored: the planner is away, and its estimates no longer hold. Twenty times the usual
# 0.5 s between two snapshots, so that one slow step does not hide the positions; not tuned.
STALE_AFTER = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A request's position in the order of service (1 is next) and when its answer is expected; None where unknown.

    Nine of ten answers should come between `low_at` and `high_at`.
    """

    position: int | None = None
    eta_at: datetime | None = None
    low_at: datetime | None = None
    high_at: datetime | None = None

    def not_before(self, now: datetime) -> "QueuePlace":
        """The same with no instant in the past, and the ETA within its interval."""
        eta_at, low_at, high_at = (
            None if at is None else max(at, now) for at in (self.eta_at, self.low_at, self.high_at)
        )
        if eta_at is not None and low_at is not None and high_at is not None:
            eta_at = min(max(eta_at, low_at), high_at)
        return QueuePlace(self.position, eta_at, low_at, high_at)


class Places:
    """Places by request, worked out when they are asked for: a web process asks for few of a thousand, twice a second.

    What a request is expected at by the last forecast counts; until one names it, the expected end of its batch.
    """

    def __init__(self, state: Mapping[str, Any], at: datetime) -> None:
        self._at = at
        self._batches: Sequence[Mapping[str, Any]] = state.get("batches", [])
        self._expected = state.get("expected", {})

    def waiting(self, request: StoredRequest) -> QueuePlace | None:
        """Of a request that waits; None if the snapshot does not know of it."""
        place = self._forecast(request.id)
        if place is not None and place.position is not None:
            return place
        return self._by_batch.get(request.id) or self._behind(request)

    def running(self, request_id: str) -> QueuePlace | None:
        """Of a request that the last forecast knew as running."""
        place = self._forecast(request_id)
        return None if place is None or place.position is not None else place

    def _forecast(self, request_id: str) -> QueuePlace | None:
        for of_model in self._expected.values():
            if request_id in of_model["jobs"]:
                position, *seconds = of_model["jobs"][request_id]
                began_at = datetime.fromtimestamp(of_model["at"], UTC)
                return QueuePlace(position, *(began_at + timedelta(seconds=some) for some in seconds))
        return None

    def _behind(self, request: StoredRequest) -> QueuePlace | None:
        """Of a request behind those that are named, as the one in the middle of all that are."""
        of_model = self._expected.get(request.model, {})
        if not of_model.get("behind") or request.arrived_at >= self._at:
            return None
        began_at = datetime.fromtimestamp(of_model["at"], UTC)
        return QueuePlace(None, *(began_at + timedelta(seconds=some) for some in of_model["behind"]))

    @cached_property
    def _by_batch(self) -> Mapping[str, QueuePlace]:
        places: dict[str, QueuePlace] = {}
        ahead = 0
        for batch in self._batches:
            eta_at = self._at + timedelta(seconds=batch["starts_in_s"] + batch["estimated_s"])
            places |= {name: QueuePlace(place, eta_at) for place, name in enumerate(batch["ids"], start=ahead + 1)}
            ahead += batch["size"]
        return places


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The planner's snapshot of the queue."""

    at: datetime
    waiting: int  # queued requests
    backlog_s: float  # seconds until a worker would be free for a request that comes now
    typical_s: float  # mean estimated serving time of the waiting batches, else of recently served ones
    places: "Places" = field(repr=False)  # of waiting requests; of a long queue only the first
    lines: Mapping[str, ResponseLine] = field(repr=False)  # by model: how long a request takes that comes now
    state: Mapping[str, Any] = field(repr=False)  # the snapshot as the planner wrote it

    @property
    def largest_tokens(self) -> Mapping[str, int]:
        """By model the tokens that the largest worker's key-value cache holds; only models that have a worker."""
        tokens: Mapping[str, int] = self.state.get("largest_tokens", {})
        return tokens

    @property
    def lacking(self) -> Mapping[str, Sequence[str]]:
        """By model what none of its workers can do, by the names of a request's fields."""
        lacking: Mapping[str, Sequence[str]] = self.state.get("lacking", {})
        return lacking


def read_queue_snapshot(session: Session) -> QueueSnapshot | None:
    """The last snapshot; None before the first, or if it is older than STALE_AFTER by the database's clock."""
    row = session.execute(
        select(ServiceState.value, ServiceState.updated_at, func.clock_timestamp().label("now")).where(
            ServiceState.name == "planner"
        )
    ).one_or_none()
    if row is None or row.now - row.updated_at > STALE_AFTER:
        return None
    return parse_queue_snapshot(row.value, row.updated_at)


def parse_queue_snapshot(state: Mapping[str, Any], at: datetime) -> QueueSnapshot:
    """The snapshot `state`, written at `at`."""
    batches = state.get("batches", [])
    typical_s = (
        sum(batch["estimated_s"] for batch in batches) / len(batches) if batches else state.get("typical_s", 0.0)
    )
    lines = {
        model: ResponseLine(*expected["line"])
        for model, expected in state.get("expected", {}).items()
        if expected["line"] is not None
    }
    waiting, backlog_s = state.get("waiting", 0), state.get("backlog_s", 0.0)
    return QueueSnapshot(at, waiting, backlog_s, typical_s, Places(state, at), lines, state)


def place_in_queue(view: RequestView, snapshot: QueueSnapshot | None) -> QueuePlace:
    """The request's position, ETA and interval; no instant is earlier than `view.now`.

    Running: as the last forecast has it, else the batch's start plus its estimated serving time. Queued: as the
    snapshot lists it, or has those behind the part that is listed, else (too new) the ETA given at submission, else the
    end of the backlog plus one typical batch. The interval is the forecast's, else the one given at submission. Final:
    none.
    """
    if view.request.status is RequestStatus.in_progress:
        forecast = snapshot.places.running(view.request.id) if snapshot else None
        return (forecast or _of_batch(view)).not_before(view.now)
    if view.request.status is not RequestStatus.queued or snapshot is None:
        return QueuePlace()
    listed = snapshot.places.waiting(view.request)
    if listed is not None and listed.low_at is not None:
        return listed.not_before(view.now)
    request = view.request
    eta_at = request.eta_at or snapshot.at + timedelta(seconds=snapshot.backlog_s + snapshot.typical_s)
    place = listed or QueuePlace(None, eta_at)
    return replace(place, low_at=request.eta_low_at, high_at=request.eta_high_at).not_before(view.now)


def _of_batch(view: RequestView) -> QueuePlace:
    request, batch = view.request, view.batch
    if batch is None:
        return QueuePlace()
    ends_at = (batch.started_at or batch.assigned_at) + timedelta(seconds=batch.estimated_s * _share(request, batch))
    return QueuePlace(None, ends_at, request.eta_low_at, request.eta_high_at)


def _share(request: StoredRequest, batch: StoredBatch) -> float:
    """The share of the batch's seconds that this request takes: all, unless the rows leave one by one."""
    if not batch.joins or not request.predicted_tokens:
        return 1.0
    return min(1.0, request.predicted_tokens / max(1, batch.predicted_generation_length))
