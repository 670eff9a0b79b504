"""What the API told of a job at any instant, worked out from the planner's snapshots, and how far it erred."""

import bisect
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from cli.api_client import Json
from models.client_requests import RequestView
from models.planning.queue_position import (
    STALE_AFTER,
    QueuePlace,
    QueueSnapshot,
    place_in_queue,
    read_queue_snapshot,
)
from models.tables import RequestStatus, StoredBatch, StoredRequest

WHOLE_S = 0.05  # ETAs with less time left than this are not judged: a clock's tick and a network's way are that long
GIVEN = ("id", "model", "arrived_at", "predicted_tokens", "eta_at", "eta_low_at", "eta_high_at")  # before it ends


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was answered, with the batch that answered it; instants in seconds since the epoch."""

    request: StoredRequest
    batch: StoredBatch | None
    arrived_at: float
    started_at: float | None
    finished_at: float

    @classmethod
    def of(cls, view: RequestView) -> "Job":
        """From what the API shows of an ended request."""
        request, started_at = view.request, view.request.started_at
        if request.finished_at is None:
            raise ValueError(f"{request.id} has not ended")
        began = None if started_at is None else started_at.timestamp()
        return cls(request, view.batch, request.arrived_at.timestamp(), began, request.finished_at.timestamp())

    @property
    def length_error(self) -> float:
        """How far the predicted length was from the real one, as a share of it."""
        return abs((self.request.predicted_tokens or 0) / max(1, self.request.output_tokens or 0) - 1)

    def view_at(self, at: float) -> RequestView:
        """The job as the API found it at this instant."""
        began = self.started_at is not None and self.started_at <= at
        given = {name: getattr(self.request, name) for name in GIVEN}
        status = RequestStatus.in_progress if began else RequestStatus.queued
        return RequestView(
            StoredRequest(status=status, **given), self.batch if began else None, 0, datetime.fromtimestamp(at, UTC)
        )


class Snapshots:
    """The planner's snapshots of one run."""

    def __init__(self) -> None:
        self._kept: list[QueueSnapshot] = []

    def keep(self, session: Session) -> None:
        """Keep the present one if it is new."""
        snapshot = read_queue_snapshot(session)
        if snapshot is not None and (not self._kept or snapshot.at > self._kept[-1].at):
            self._kept.append(snapshot)
        session.rollback()

    def place(self, job: Job, at: float) -> QueuePlace:
        """What the API told of a job at this instant."""
        view = job.view_at(at)
        number = bisect.bisect_right(self._kept, view.now, key=lambda kept: kept.at) - 1
        known = number >= 0 and view.now - self._kept[number].at <= STALE_AFTER
        return place_in_queue(view, self._kept[number] if known else None)


def judge(jobs: Sequence[Job], snapshots: Snapshots) -> list[Json]:
    """A row for each moment: median error, share of answers within the interval, and how many were judged."""
    rows = []
    for moment, at_of in MOMENTS.items():
        left = [
            (at, job.finished_at, place)
            for job in jobs
            if (at := at_of(job)) is not None
            and job.finished_at - at > WHOLE_S
            and (place := _told(moment, job, at, snapshots)).eta_at is not None
        ]
        rows.append(
            {
                "moment": moment,
                "judged": len(left),
                "median_error": _median(
                    abs(place.eta_at.timestamp() - end) / (end - at) for at, end, place in left if place.eta_at
                ),
                "coverage": _mean(
                    place.low_at.timestamp() <= end <= place.high_at.timestamp()
                    for _, end, place in left
                    if place.low_at is not None and place.high_at is not None
                ),
                "length_error": _median(job.length_error for job in jobs),
            }
        )
    return rows


def _told(moment: str, job: Job, at: float, snapshots: Snapshots) -> QueuePlace:
    """What the API told at this moment; at submission it is the call's own answer."""
    told = QueuePlace(None, job.request.eta_at, job.request.eta_low_at, job.request.eta_high_at)
    return told if moment == "submission" else snapshots.place(job, at)


MOMENTS: dict[str, Callable[[Job], float | None]] = {
    "submission": lambda job: job.arrived_at,
    "half-way": lambda job: (job.arrived_at + job.finished_at) / 2,
    "start": lambda job: job.started_at,
}


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return round(statistics.median(known), 4) if known else None


def _mean(values: Iterable[bool]) -> float | None:
    known = list(values)
    return round(statistics.fmean(known), 4) if known else None
