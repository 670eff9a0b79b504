"""Judges the ETAs of answered requests as the API showed them: their errors, their intervals and what polling finds."""

import bisect
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from benchmarks.eta.rivals import History, Served, beside_rivals
from benchmarks.harness import Json
from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace, place_in_queue, told_at_submission
from models.planning.queue_snapshot import STALE_AFTER, QueueSnapshot, read_queue_snapshot
from models.tables import RequestStatus, StoredBatch, StoredRequest
from protocol.responses.response_objects import retry_after_s

WHOLE_S = 0.05  # ETAs with less time left than this are not judged: clocks and the network are not more exact
# These columns of a request are known before it ends.
UNENDED = ("id", "model", "arrived_at", "predicted_tokens", "eta")


@dataclass(frozen=True, slots=True)
class JudgedJob:
    """An answered job with its batch; instants are seconds since the epoch."""

    request: StoredRequest
    batch: StoredBatch | None
    arrived_at: float
    started_at: float | None
    finished_at: float

    @classmethod
    def from_view(cls, view: RequestView) -> "JudgedJob":
        """Make a job from an ended request as the API reads it; raises ValueError if it has not ended."""
        request, started_at = view.request, view.request.started_at
        if request.finished_at is None:
            raise ValueError(f"{request.id} has not ended")
        began = None if started_at is None else started_at.timestamp()
        return cls(request, view.batch, request.arrived_at.timestamp(), began, request.finished_at.timestamp())

    @property
    def served(self) -> Served:
        """Return what rivals know of the job once it has ended."""
        began = self.arrived_at if self.started_at is None else self.started_at
        return Served(self.arrived_at, self.finished_at, began, self.request.output_tokens or 0)

    @property
    def length_error(self) -> float:
        """Return the error of the predicted length, as a share of the real one."""
        return abs((self.request.predicted_tokens or 0) / max(1, self.request.output_tokens or 0) - 1)

    def view_at(self, at: float) -> RequestView:
        """Return the job as the API read it at this instant."""
        began = self.started_at is not None and self.started_at <= at
        given = {name: getattr(self.request, name) for name in UNENDED}
        status = RequestStatus.in_progress if began else RequestStatus.queued
        return RequestView(
            StoredRequest(status=status, **given), self.batch if began else None, 0, datetime.fromtimestamp(at, UTC)
        )


class Snapshots:
    """The planner's snapshots of one run."""

    def __init__(self) -> None:
        self._kept: list[QueueSnapshot] = []

    def keep(self, session: Session) -> None:
        """Keep the current snapshot if it is newer than the last one kept."""
        snapshot = read_queue_snapshot(session)
        if snapshot is not None and (not self._kept or snapshot.at > self._kept[-1].at):
            self._kept.append(snapshot)
        session.rollback()

    def place(self, job: JudgedJob, at: float) -> QueuePlace:
        """Return the ETA and position that the API showed for a job at this instant."""
        view = job.view_at(at)
        number = bisect.bisect_right(self._kept, view.now, key=lambda kept: kept.at) - 1
        known = number >= 0 and view.now - self._kept[number].at <= STALE_AFTER
        return place_in_queue(view, self._kept[number] if known else None)


def judge(jobs: Sequence[JudgedJob], snapshots: Snapshots, history: History) -> list[Json]:
    """Make a row for each moment: median error, shares of answers within and before the interval, number of jobs.

    The row of the submission also has the rivals, and the polls of a client that comes back when `Retry-After` says.
    """
    rows: list[Json] = []
    for moment, at_of in MOMENTS.items():
        left = [
            (at, job.finished_at, place)
            for job in jobs
            if (at := at_of(job)) is not None
            and job.finished_at - at > WHOLE_S
            and (place := _shown_eta(moment, job, at, snapshots)).eta_at is not None
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
                "before_low": _mean(end < place.low_at.timestamp() for _, end, place in left if place.low_at),
                "before_eta": _mean(end < place.eta_at.timestamp() for _, end, place in left if place.eta_at),
                "length_error": _median(job.length_error for job in jobs),
            }
        )
    shown = [
        (job.served, job.arrived_at + eta["eta_s"], eta["high_s"] - eta["low_s"])
        for job in jobs
        if (eta := job.request.eta) and eta["low_s"] is not None
    ]
    polled = [polls(job, snapshots) for job in jobs]
    at_submission = beside_rivals(shown, history) | {
        "found": _mean(len(instants) == 1 for instants in polled),
        "polls": round(statistics.fmean(len(instants) for instants in polled), 3),
        "found_after_s": _median(instants[-1] - job.finished_at for job, instants in zip(jobs, polled, strict=True)),
    }
    return [row | (at_submission if row["moment"] == "submission" else {}) for row in rows]


def polls(job: JudgedJob, snapshots: Snapshots) -> list[float]:
    """Return when a client that follows `Retry-After` asks for the job; at the last instant it finds the answer."""
    at, place, instants = job.arrived_at, _shown_eta("submission", job, job.arrived_at, snapshots), list[float]()
    while at < job.finished_at:
        at += retry_after_s(job.view_at(at), place) or 0
        place = snapshots.place(job, at)
        instants.append(at)
    return instants


def _shown_eta(moment: str, job: JudgedJob, at: float, snapshots: Snapshots) -> QueuePlace:
    """Return the ETA that the API showed at this moment; at submission it is in the call's answer."""
    return told_at_submission(job.request) if moment == "submission" else snapshots.place(job, at)


MOMENTS: dict[str, Callable[[JudgedJob], float | None]] = {
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
