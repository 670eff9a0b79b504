"""The figures of the overview, read in one session, and the verdict: how the service does, and what limits it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.orm import Session

from models import ended_requests
from models.client_requests import RequestView
from models.connections.schema_state import schema_state
from models.operations import (
    application_figures,
    fleet_use,
    minute_history,
    operator_overview,
    process_heartbeats,
    service_history,
)
from models.operations.application_figures import Application
from models.operations.operator_overview import RequestCounts
from models.operations.service_history import HistoryPoint
from models.operations.shadow_round import ShadowRound, read_shadow_round
from models.planning.queue_snapshot import QueueSnapshot, read_queue_snapshot
from models.registered_workers import TAKES_BATCHES, RegisteredWorker
from models.upkeep import invariants
from models.upkeep.invariants import Violation

Word = Literal["keeping up", "behind", "stuck", "failing"]
Limit = Literal["memory", "compute", "predictor", "planner", "broker", "database", "no worker"]

# Failed share of requests that ended within ten minutes; a healthy service has nearly none. Not tuned.
FAILING_SHARE = 0.05
FEWEST_FAILED = 3  # failed requests: if fewer failed, the requests themselves are more likely the cause
# Seconds without an ended request while requests wait: few single answers take longer. Not tuned.
SILENT_S = 120.0
BEHIND_S = 30.0  # a new request's waiting time from which interactive clients give up. Not tuned.
WAITS_FOR_PREDICTION_S = 5.0  # predictors act at once; by default a planner goes on without them after 5 s
MEMORY_FULL = 0.85  # reserved share of Θ above which the next batch does not fit. Not tuned.


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """The figures on which the verdict rests; ages in seconds, shares from 0 to 1, `lately` means ten minutes."""

    queued: int  # requests that wait, also those of batches that no worker has begun in time
    in_flight: int
    unpredicted: int
    oldest_s: float | None
    wait_s: float | None  # seconds until a request that arrives now would start; None without a planner
    workers: int  # workers that get batches
    paused: bool
    planner: bool
    planner_failure: str | None  # why no step of a planner succeeds
    database_problem: str | None  # why nothing can be stored
    broker_error: str | None  # why the broker takes no messages
    unserved: tuple[str, ...]  # models with waiting requests and without a worker
    predictor: bool
    memory_share: float  # reserved share of Θ over all workers
    ended_lately: int
    failed_lately: int
    last_ended_s: float | None


@dataclass(frozen=True, slots=True)
class ServiceVerdict:
    """The verdict in a word and a sentence, and the limit that binds; None if no limit does."""

    word: Word
    limit: Limit | None
    sentence: str

    @property
    def tone(self) -> str:
        """The CSS class of the word."""
        return {"keeping up": "completed", "behind": "incomplete"}.get(self.word, "failed")


def verdict_on(figures: ServiceFigures) -> ServiceVerdict:
    """Returns the worst verdict that holds: failing, stuck, behind, or keeping up."""
    limit = binding_limit(figures)
    if figures.failed_lately >= FEWEST_FAILED and figures.failed_lately > FAILING_SHARE * figures.ended_lately:
        sentence = f"{figures.failed_lately:,} of the {figures.ended_lately:,} requests that ended lately failed."
        return ServiceVerdict("failing", limit, sentence)
    if (obstacle := _obstacle(figures)) is not None:
        return ServiceVerdict("stuck", *obstacle)
    silent_s = min((s for s in (figures.last_ended_s, figures.oldest_s) if s is not None), default=0.0)
    if figures.queued and silent_s > SILENT_S:
        return ServiceVerdict("stuck", limit, f"Requests wait, and none has ended for {silent_s:.0f} seconds.")
    wait_s = max(figures.wait_s or 0.0, figures.oldest_s or 0.0)
    if figures.queued and wait_s > BEHIND_S:
        return ServiceVerdict("behind", limit, f"A new request waits about {wait_s:.0f} seconds before it is served.")
    return ServiceVerdict("keeping up", None if limit in ("compute", "memory") else limit, _why_well(figures, limit))


def binding_limit(figures: ServiceFigures) -> Limit | None:
    """Returns the resource or process that limits how many requests are served."""
    if (obstacle := _obstacle(figures)) is not None:
        return obstacle[0]
    waits_long = figures.unpredicted > 0 and (figures.oldest_s or 0.0) > WAITS_FOR_PREDICTION_S
    if not figures.predictor or (waits_long and figures.unpredicted > figures.queued / 2):
        return "predictor"
    if not figures.queued:
        return None
    return "memory" if figures.memory_share > MEMORY_FULL else "compute"


def _obstacle(figures: ServiceFigures) -> tuple[Limit, str] | None:
    """Returns what keeps requests from being served at all, with a sentence; a cause comes before what it causes."""
    who = "Requests wait" if figures.queued else "New requests will wait"
    if figures.database_problem is not None:  # without a database no process can report that it works
        return "database", f"{who}: {figures.database_problem}."
    if figures.broker_error is not None:  # workers end without a broker
        return "broker", f"{who}: the broker takes no messages. It says: {figures.broker_error.rstrip('.')}."
    if figures.planner_failure is not None and not figures.planner:  # a missing right stops workers, too
        return "planner", f"{who}: the planner's steps fail: {figures.planner_failure}."
    if not figures.workers:
        return "no worker", f"{who}: no worker takes batches."
    if figures.paused:
        return "planner", f"{who}: planning is paused."
    if not figures.planner:
        return "planner", f"{who}: no planner works."
    return (
        ("no worker", f"Requests wait: no worker serves {', '.join(figures.unserved)}.") if figures.unserved else None
    )


def _why_well(figures: ServiceFigures, limit: Limit | None) -> str:
    if limit == "predictor":
        return "No predictor works, or it lags behind: each application's mean stands in for predicted lengths."
    return "Requests are served as they arrive." if figures.queued or figures.in_flight else "No request waits."


SHOWN_ANSWERS = 8  # rows of the table of last answers; not tuned
LATELY_S = 600  # the time that the verdict calls lately
SAMPLES_A_MINUTE = 6


@dataclass(frozen=True)
class Overview:
    """Everything on the overview but its charts, at one moment."""

    now: RequestCounts
    ended: dict[str, int]  # requests of the last hour by final state
    verdict: ServiceVerdict
    attention: Sequence[Violation]
    queue_snapshot: QueueSnapshot | None  # None while no planner writes one
    workers: list[RegisteredWorker]
    live_workers: int  # the number of `workers` with a fresh heartbeat
    applications: list[Application]
    answers: Sequence[RequestView]
    response_s: tuple[float | None, ...]  # P50, P95 and P99: the maxima of the last minute's samples
    shadow: ShadowRound | None  # the last requests under every policy; None before they were simulated


def read_overview(session: Session, worker_alive_s: float) -> Overview:
    """Reads the overview; a worker counts as alive for `worker_alive_s` after a heartbeat."""
    now = operator_overview.request_counts(session)
    snapshot = read_queue_snapshot(session)
    workers = fleet_use.workers_in_use(session)
    processes = process_heartbeats.processes(session.connection())
    failing = process_heartbeats.failing(processes)
    lately = service_history.history(session, LATELY_S, 10)
    paused = operator_overview.paused_since(session) is not None
    answers = ended_requests.last_ended(session, SHOWN_ANSWERS)
    taking = [worker for worker in workers if worker.state(worker_alive_s) in TAKES_BATCHES]
    figures = ServiceFigures(
        queued=now.queued,
        in_flight=now.running,
        unpredicted=now.unpredicted,
        oldest_s=now.oldest_s,
        wait_s=snapshot.queue.backlog_s if snapshot else None,
        workers=len(taking),
        paused=paused,
        planner=snapshot is not None,
        planner_failure=next((one.failure for one in failing if one.kind == "planner"), None),
        database_problem=schema_state(session.connection()).problem,
        broker_error=snapshot.decisions.broker_error if snapshot else None,
        unserved=tuple(snapshot.unserved) if snapshot else (),
        predictor=any(one.kind == "predictor" and one.works for one in processes),
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
    return Overview(
        now=now,
        ended=minute_history.ended_last_hour(session),
        verdict=verdict_on(figures),
        attention=list(invariants.violations(session.connection(), 2 * worker_alive_s, only_cheap=True)),
        queue_snapshot=snapshot,
        workers=workers,
        live_workers=sum(worker.lives(worker_alive_s) for worker in workers),
        applications=application_figures.applications(session),
        answers=answers,
        response_s=_response_s(lately[-SAMPLES_A_MINUTE:]),
        shadow=read_shadow_round(session),
    )


def _response_s(points: Sequence[HistoryPoint]) -> tuple[float | None, ...]:
    percentiles = zip(*((p.response_p50_s, p.response_p95_s, p.response_p99_s) for p in points), strict=True)
    worst = (max((s for s in of_points if s is not None), default=None) for of_points in percentiles)
    return tuple(worst) or (None, None, None)


def _reserved_share(workers: Sequence[RegisteredWorker]) -> float:
    capacity = sum(worker.facts.memory.capacity_tokens for worker in workers)
    return sum(worker.load.reserved_tokens for worker in workers) / capacity if capacity else 0.0
