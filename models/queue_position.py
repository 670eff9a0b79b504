"""A request's position in the queue and its ETA, from the planner's last snapshot of the queue.

The planner writes the snapshot to `service_state['planner']` at most twice a second. Without a recent snapshot there is
no position and no ETA for a queued request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.client_requests import RequestView
from models.tables import RequestStatus, ServiceState

# A snapshot older than this is ignored: the planner is away, and its estimates no longer hold. Twenty times the usual
# 0.5 s between two snapshots, so that one slow step does not hide the positions; not tuned.
STALE_AFTER = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A request's position in the order of service (1 is next) and when its answer is expected; None where unknown."""

    position: int | None = None
    eta_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The planner's snapshot of the queue."""

    at: datetime
    waiting: int  # queued requests
    backlog_s: float  # seconds until a worker would be free for a request that comes now
    typical_s: float  # mean estimated serving time of the waiting batches, else of recently served ones
    places: Mapping[str, QueuePlace] = field(repr=False)  # by request id; of a long queue only the first
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
    """The snapshot `state`, written at `at`; the ETA of each listed request is the expected end of its batch."""
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


def place_in_queue(view: RequestView, snapshot: QueueSnapshot | None) -> QueuePlace:
    """The request's position and ETA.

    In progress: the batch's start plus its estimated serving time. Queued and listed in the snapshot: as listed.
    Queued and not listed (too new, or behind the part that the snapshot lists): the ETA given at submission, else the
    end of the backlog plus one typical batch. Unless listed, the ETA is never earlier than `view.now`.
    Final: neither position nor ETA.
    """
    if view.request.status is RequestStatus.in_progress:
        batch = view.batch
        if batch is None:
            return QueuePlace()
        start = batch.started_at or batch.assigned_at
        return QueuePlace(None, max(start + timedelta(seconds=batch.estimated_s), view.now))
    if view.request.status is not RequestStatus.queued or snapshot is None:
        return QueuePlace()
    listed = snapshot.places.get(view.request.id)
    if listed is not None:
        return listed
    eta_at = view.request.eta_at or snapshot.at + timedelta(seconds=snapshot.backlog_s + snapshot.typical_s)
    return QueuePlace(None, max(eta_at, view.now))
