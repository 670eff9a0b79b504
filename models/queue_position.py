"""Where a request stands: the planner's last snapshot of the waiting room, turned into positions and estimates.

The planner writes `service_state['planner']` at most twice a second. What it does not say is not invented: without a
recent snapshot there is no position and no estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.client_requests import RequestView
from models.tables import RequestStatus, ServiceState

STALE = timedelta(seconds=10)  # a planner that says nothing for so long is away, and its estimates are worth nothing


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A request's position in serving order (1 is next) and when its answer is expected; None where unknown."""

    position: int | None = None
    eta_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The planner's snapshot, looked up by request id."""

    at: datetime
    waiting: int
    backlog_s: float
    typical_s: float  # mean estimated serving time of the waiting batches, else of recently served ones
    places: Mapping[str, QueuePlace] = field(repr=False)
    state: Mapping[str, Any] = field(repr=False)


def read_queue_snapshot(session: Session) -> QueueSnapshot | None:
    """The last snapshot; None before the first, or when it is stale by the database's clock."""
    row = session.execute(
        select(ServiceState.value, ServiceState.updated_at, func.clock_timestamp().label("now")).where(
            ServiceState.name == "planner"
        )
    ).one_or_none()
    if row is None or row.now - row.updated_at > STALE:
        return None
    return queue_snapshot_of(row.value, row.updated_at)


def queue_snapshot_of(state: Mapping[str, Any], at: datetime) -> QueueSnapshot:
    """Every request that the snapshot names gets its position and the end of its batch."""
    places: dict[str, QueuePlace] = {}
    batches = state.get("batches", [])
    ahead = 0
    for batch in batches:
        eta_at = at + timedelta(seconds=batch["starts_in_s"] + batch["estimated_s"])
        for offset, request_id in enumerate(batch["ids"], 1):
            places[request_id] = QueuePlace(ahead + offset, eta_at)
        ahead += batch["size"]
    typical_s = (
        sum(batch["estimated_s"] for batch in batches) / len(batches) if batches else state.get("typical_s", 0.0)
    )
    return QueueSnapshot(at, state.get("waiting", 0), state.get("backlog_s", 0.0), typical_s, places, state)


def place(seen: RequestView, room: QueueSnapshot | None) -> QueuePlace:
    """Where this request stands.

    Running: the batch's start plus its estimated serving time. Waiting and named in the snapshot: what it says.
    Waiting otherwise (too new, or behind what the snapshot lists): as it was told when it came, or else behind
    everything that the planner knows.
    """
    if seen.request.status is RequestStatus.in_progress:
        batch = seen.batch
        if batch is None:
            return QueuePlace()
        start = batch.started_at or batch.assigned_at
        return QueuePlace(None, max(start + timedelta(seconds=batch.estimated_s), seen.now))
    if seen.request.status is not RequestStatus.queued or room is None:
        return QueuePlace()
    named = room.places.get(seen.request.id)
    if named is not None:
        return named
    told = seen.request.eta_at
    return QueuePlace(None, max(told or room.at + timedelta(seconds=room.backlog_s + room.typical_s), seen.now))
