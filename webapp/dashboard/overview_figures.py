"""What the overview shows, read in one session."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from models import ended_requests
from models.client_requests import RequestView
from models.operations import (
    application_figures,
    fleet_use,
    minute_history,
    operator_overview,
    process_heartbeats,
    service_history,
)
from models.operations.application_figures import Application
from models.operations.fleet_use import WorkerUse
from models.operations.minute_history import EndedCounts
from models.operations.operator_overview import RequestCounts
from models.operations.service_history import HistoryPoint
from models.planning import queue_position
from models.planning.queue_position import QueueSnapshot
from models.upkeep import invariants
from models.upkeep.invariants import Violation
from webapp.dashboard.service_verdict import ServiceFigures, ServiceVerdict, verdict_on

SHOWN_ANSWERS = 8  # rows of the table of last answers; not tuned
LATELY_S = 600  # what the verdict calls lately
SAMPLES_A_MINUTE = 6
TAKES_BATCHES = ("running", "idle")


@dataclass(frozen=True)
class Overview:
    """Everything on the overview but its charts, as of one moment."""

    now: RequestCounts
    ended: EndedCounts
    verdict: ServiceVerdict
    attention: Sequence[Violation]
    queue_snapshot: QueueSnapshot | None  # None while no planner writes one
    workers: list[WorkerUse]
    applications: list[Application]
    answers: Sequence[RequestView]
    response_s: tuple[float | None, ...]  # P50, P95 and P99 of the last minute, each the worst of its samples


def read_overview(session: Session, worker_alive_s: float) -> Overview:
    """Read the overview; a worker is alive for `worker_alive_s` after a heartbeat."""
    now = operator_overview.request_counts(session, worker_alive_s)
    snapshot = queue_position.read_queue_snapshot(session)
    workers = fleet_use.workers_in_use(session)
    processes = process_heartbeats.processes(session.connection())
    lately = service_history.history(session, LATELY_S, 10)
    paused = operator_overview.paused_since(session) is not None
    answers = ended_requests.last_ended(session, SHOWN_ANSWERS)
    taking = [worker for worker in workers if worker.state(worker_alive_s) in TAKES_BATCHES]
    figures = ServiceFigures(
        queued=now.queued,
        in_flight=now.running,
        unpredicted=now.unpredicted,
        oldest_s=now.oldest_s,
        wait_s=snapshot.backlog_s if snapshot else None,
        workers=len(taking),
        paused=paused,
        planner=snapshot is not None,
        predictor=any(one.kind == "predictor" and not one.silent for one in processes),
        memory_share=_reserved_share(taking),
        ended_lately=sum(point.answers + point.failed for point in lately),
        failed_lately=sum(point.failed for point in lately),
        last_ended_s=min(
            (
                (now.now - view.request.finished_at).total_seconds()
                for view in answers
                if view.request.finished_at is not None
            ),
            default=None,
        ),
    )
    violations = list(invariants.violations(session.connection(), 2 * worker_alive_s, only_cheap=True))
    return Overview(
        now=now,
        ended=minute_history.ended_last_hour(session),
        verdict=verdict_on(figures),
        attention=_what_needs_attention(figures, workers, violations),
        queue_snapshot=snapshot,
        workers=workers,
        applications=application_figures.applications(session),
        answers=answers,
        response_s=_response_s(lately[-SAMPLES_A_MINUTE:]),
    )


def _response_s(points: Sequence[HistoryPoint]) -> tuple[float | None, ...]:
    percentiles = zip(*((p.response_p50_s, p.response_p95_s, p.response_p99_s) for p in points), strict=True)
    worst = (max((s for s in of_points if s is not None), default=None) for of_points in percentiles)
    return tuple(worst) or (None, None, None)


def _reserved_share(workers: Sequence[WorkerUse]) -> float:
    capacity = sum(worker.capacity_tokens for worker in workers)
    return sum(worker.reserved_tokens for worker in workers) / capacity if capacity else 0.0


def _what_needs_attention(
    figures: ServiceFigures, workers: Sequence[WorkerUse], violations: Sequence[Violation]
) -> list[Violation]:
    """What an operator should look at, the worst first, each with what to do."""
    found = []
    if not figures.workers:
        remedy = "start one with `magnus worker`, or everything with `magnus up`"
        found.append(Violation("no worker takes batches", 1, (), remedy))
    if figures.paused:
        found.append(Violation("planning is paused", 1, (), "resume it on the page Queue"))
    elif not figures.planner:
        found.append(Violation("no planner has been heard of for ten seconds", 1, (), "start one"))
    faults = [f"{worker.name}: {worker.fault}" for worker in workers if worker.fault and not worker.stopped]
    if faults:
        found.append(Violation("engines are set aside", len(faults), tuple(faults), "look at these servers"))
    return [*found, *violations]
