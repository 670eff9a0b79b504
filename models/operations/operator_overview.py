"""Reads the overview's figures: requests by stage, and what keeps them from being served. Pauses planning."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from models import planner_state
from models.bulk.bulk_tables import UNENDED
from models.connections.connection_slots import connection_shortage
from models.connections.database_errors import DISK_FULL
from models.connections.sql import text
from models.operations import process_heartbeats
from models.operations.fleet_use import ASK_THE_SAME, empty_answers
from models.operations.service_history import UNSTARTED, UNSTARTED_S
from models.planning.queue_snapshot import read_queue_snapshot
from models.registered_workers import DAY_S, REPAIR_ENGINE, RegisteredWorker, registered_workers
from models.tables import PREDICTED


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests by stage, at one instant of the database's clock."""

    now: datetime
    unpredicted: int  # queued without a length prediction
    unplanned: int  # predicted, but not yet fetched by the planner
    waiting: int  # in the queue of a planner's policy
    unstarted: int  # in a batch that was assigned UNSTARTED_S ago or longer, and that its worker has not begun
    assigned: int  # in a batch that was assigned later, and that its worker has not begun
    running: int  # in any open batch, without those counted as `unstarted`
    oldest_s: float | None  # age of the oldest waiting request
    finished_minute: int  # answers of the last 60 s
    tokens_minute: int  # tokens of the answers of the last 60 s
    held: int = 0  # lines of paused bulk jobs, counted in none of the fields above
    unread_lines: int = 0  # lines of bulk jobs that are no requests yet, blank lines included

    @property
    def queued(self) -> int:
        """The number of all waiting requests."""
        return self.unpredicted + self.unplanned + self.waiting + self.unstarted


def request_counts(session: Session) -> RequestCounts:
    """Counts requests through the partial indexes of unfinished ones, so that old answers cost no time."""
    row = session.execute(
        text(f"""
            with counts as (
                select (select count(*) from requests where status = 'queued') - held.requests as queued,
                    (select count(*) from requests
                        where {PREDICTED} and planner_epoch = 0 and tier > 'flex')
                        + (select count(*) from requests
                            where {PREDICTED} and planner_epoch = 0 and tier <= 'flex')
                        - held.unplanned as unplanned,
                    (select count(*) from requests where status = 'queued' and predicted_tokens is null)
                        - held.unpredicted as unpredicted, held.requests as held
                from (
                    select count(*) as requests, count(*) filter (where predicted_tokens is null) as unpredicted,
                        count(*) filter (where predicted_tokens is not null and planner_epoch = 0) as unplanned
                    from requests where status = 'queued' and held
                ) held
            ), unread as (
                select coalesce(sum(last_line - next_line + 1), 0)::int as unread_lines from bulk_jobs
                where {UNENDED} and status in ('validating', 'in_progress')
            ), flight as (
                select count(*) as running, count(*) filter (where b.status = 'assigned') as assigned
                from requests r left join batches b on b.id = r.batch_id where r.status = 'in_progress'
            ), unstarted as (
                select count(*) as unstarted, min(r.arrived_at) as arrived_at from {UNSTARTED}
            ), oldest as (
                select least((
                    select arrived_at from requests where status = 'queued' and not held order by arrived_at limit 1),
                    (select arrived_at from unstarted)) as arrived_at
            ), minute as (
                select count(*) as finished, coalesce(sum(output_tokens), 0) as tokens from requests
                where finished_at > statement_timestamp() - interval '60 s' and status in ('completed', 'incomplete')
            )
            select clock_timestamp() as now, unpredicted, unplanned, queued - unpredicted - unplanned as waiting,
                unstarted, assigned - unstarted as assigned, running - unstarted as running,
                extract(epoch from clock_timestamp() - (select arrived_at from oldest))::float8 as oldest_s,
                held, unread_lines, minute.finished as finished_minute, minute.tokens as tokens_minute
            from counts, unread, flight, unstarted, minute
        """)  # noqa: S608  # constants
    ).one()
    return RequestCounts(**row._mapping)


def fleet_findings(session: Session, workers: Sequence[RegisteredWorker], alive_s: float) -> list[str]:
    """Returns workers' problems: faults, empty answers, silence, no worker that takes batches, batches not begun."""
    here = [worker for worker in workers if not worker.stopped]
    faulty = [worker.name for worker in here if worker.lives(alive_s) and worker.report.fault is not None]
    found = [f"worker {name} is set aside; {REPAIR_ENGINE}" for name in faulty]
    found += [
        f"worker {name} answers with nothing ({empty}); {ASK_THE_SAME}"
        for name, empty in empty_answers(session).items()
    ]
    silent = [worker.name for worker in here if not worker.lives(alive_s)]
    found += [f"worker {name} is silent: others serve what it was given" for name in silent]
    if not any(worker.lives(alive_s) and worker.may_be_given_batches for worker in here):
        found.append("no worker takes batches: each is drained, stopping, set aside, or takes no messages")
    unstarted = session.scalar(text(f"select count(*) from {UNSTARTED}"))  # noqa: S608  # a constant
    if unstarted:
        found.append(f"{unstarted:,} requests were sent to workers that have not begun them for {UNSTARTED_S} s")
    return found


def planner_findings(session: Session) -> list[str]:
    """Returns the planner's problems: it wrote nothing lately, its broker fails, or models have no worker."""
    snapshot = read_queue_snapshot(session)
    if snapshot is None:
        return ["the planner plans nothing: requests are accepted and kept, and none is given to a worker"]
    error = snapshot.decisions.broker_error
    found = [f"the broker takes no messages, so nothing is given to workers: {error}"] if error else []
    return found + [
        f"no worker serves the model {model}, for which {count:,} requests wait"
        for model, count in snapshot.unserved.items()
    ]


def what_is_missing(session: Session, worker_alive_s: float) -> list[str]:
    """Returns the problems that keep requests from being accepted and served as usual, each with its consequence."""
    processes = process_heartbeats.processes(session.connection())
    workers = registered_workers(session.connection(), DAY_S)
    alive = sum(worker.lives(worker_alive_s) for worker in workers)
    missing = process_heartbeats.missing(processes)
    # without any other reason, which is for operators alone
    missing += dict.fromkeys(
        DISK_FULL
        if one.failure == DISK_FULL
        else f"the steps of a process {one.kind} fail, see its log: {process_heartbeats.WHAT_IS_MISSING[one.kind]}"
        for one in process_heartbeats.failing(processes)
    )
    running = Counter(process.kind for process in processes if not process.silent)
    shortage = connection_shortage(session.connection(), {**running, "web": 1, "worker": alive})
    if shortage is not None:
        missing.append(shortage)
    if not alive:
        missing.append("no worker is alive: requests are accepted and kept, and none is served")
    else:
        missing += fleet_findings(session, workers, worker_alive_s)
    if paused_since(session):
        missing.append("planning is paused: requests are accepted and kept, and none is given to a worker")
    if any(process.works for process in processes if process.kind == "planner"):
        missing += planner_findings(session)
    missing += [
        f"worker {worker.name} takes no messages: compare its MAGNUS_REDIS_URL"
        for worker in workers
        if worker.not_consuming
    ]
    return missing


def paused_since(session: Session) -> datetime | None:
    """Returns since when planning is paused, or None if it is not paused."""
    row = session.execute(
        text("select updated_at from service_state where name = 'pause' and (value->>'paused')::bool")
    ).one_or_none()
    return row.updated_at if row else None


def set_paused(session: Session, paused: bool) -> None:
    """Pauses or resumes planning; while it is paused, the planner assigns nothing."""
    planner_state.write_service_state(session.connection(), "pause", {"paused": paused})
    session.commit()
