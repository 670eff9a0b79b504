"""Reads the overview's figures, requests by stage and what keeps them from being served; pauses planning."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from models.bulk.bulk_tables import UNENDED
from models.connections.connection_slots import connection_shortage
from models.operations import process_heartbeats
from models.planning import planner_state
from models.planning.live_fleet import MAY_BE_GIVEN_BATCHES
from models.sql import text

# Seconds for which a batch that was sent may be on its way; its requests wait if no worker has begun it by then. Longer
# than a worker needs to take a message on a busy host. Not tuned.
UNSTARTED_S = 10
# The requests of batches that were sent and not begun, `r` with the batch `b`.
UNSTARTED = f"""requests r join batches b on b.id = r.batch_id where r.status = 'in_progress' and b.status = 'assigned'
    and b.assigned_at < statement_timestamp() - interval '{UNSTARTED_S} s'"""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests by stage, at one instant of the database's clock."""

    now: datetime
    unpredicted: int  # queued without a length prediction
    unplanned: int  # predicted, not yet fetched by the planner
    waiting: int  # in the queue of a planner's policy
    unstarted: int  # in a batch that was sent UNSTARTED_S ago or longer, and that its worker has not begun
    assigned: int  # in another batch that its worker has not begun
    running: int  # in any open batch, without the unstarted ones
    oldest_s: float | None  # age of the oldest of those that wait
    finished_minute: int  # answers of the last 60 s
    tokens_minute: int  # tokens of these answers
    workers_alive: int
    held: int = 0  # lines of paused batches, counted in none of the fields above
    unread_lines: int = 0  # lines of batches that are no requests yet, blank ones included

    @property
    def queued(self) -> int:
        """All requests that wait."""
        return self.unpredicted + self.unplanned + self.waiting + self.unstarted


def request_counts(session: Session, worker_alive_s: float) -> RequestCounts:
    """Counts requests through the partial indexes of unfinished ones, so that old answers cost no time."""
    row = session.execute(
        text(f"""
            with counts as (
                select (select count(*) from requests where status = 'queued') - held.requests as queued,
                    (select count(*) from requests where status = 'queued' and planner_epoch = 0) - held.unfed
                        as unfed,
                    (select count(*) from requests where status = 'queued' and predicted_tokens is null)
                        - held.unpredicted as unpredicted, held.requests as held
                from (
                    select count(*) as requests, count(*) filter (where planner_epoch = 0) as unfed,
                        count(*) filter (where predicted_tokens is null) as unpredicted
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
            select clock_timestamp() as now, unpredicted, unfed - unpredicted as unplanned, queued - unfed as waiting,
                unstarted, assigned - unstarted as assigned, running - unstarted as running,
                extract(epoch from clock_timestamp() - (select arrived_at from oldest))::float8 as oldest_s,
                held, unread_lines, minute.finished as finished_minute, minute.tokens as tokens_minute,
                (select count(*) from workers where stopped_at is null
                    and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s)) as workers_alive
            from counts, unread, flight, unstarted, minute
        """),  # noqa: S608  # constants
        {"alive_s": worker_alive_s},
    ).one()
    return RequestCounts(**row._mapping)


def workers_alive(session: Session, worker_alive_s: float) -> int:
    """Returns the number of workers with a heartbeat that is at most `worker_alive_s` old."""
    alive = text("""select count(*) from workers where stopped_at is null
        and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s)""")
    return int(session.execute(alive, {"alive_s": worker_alive_s}).scalar_one())


def workers_not_consuming(session: Session) -> list[str]:
    """Returns the names of workers that get no batch because they took none of several messages."""
    rows = session.execute(
        text("""
            select name from workers where not_consuming_since is not null
                and heartbeat_at > statement_timestamp() - interval '1 day' order by name
        """)
    )
    return [row.name for row in rows]


def fleet_findings(session: Session, worker_alive_s: float) -> list[str]:
    """Returns the problems of workers: faulty engines, silence, batches never begun, no worker free to get one."""
    row = session.execute(
        text(f"""
            select count(*) filter (where lives and {MAY_BE_GIVEN_BATCHES}) as taking,
                array_agg(name order by name) filter (where lives and fault is not null) as faulty,
                array_agg(name order by name) filter (where not lives) as silent,
                (select count(*) from {UNSTARTED}) as unstarted
            from workers, lateral (
                select heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s) as lives
            ) as heartbeat
            where stopped_at is null and heartbeat_at > statement_timestamp() - interval '1 day'
        """),  # noqa: S608  # constants
        {"alive_s": worker_alive_s},
    ).one()
    found = [f"worker {name} is set aside, because its engine does not work" for name in row.faulty or ()]
    found += [f"worker {name} is silent: others serve what it was given" for name in row.silent or ()]
    if not row.taking:
        found.append("no worker takes batches: each is drained, stopping, set aside, or takes no messages")
    if row.unstarted:
        found.append(f"{row.unstarted:,} requests were sent to workers that have not begun them for {UNSTARTED_S} s")
    return found


def planner_findings(session: Session) -> list[str]:
    """Returns the planner's problems: it wrote nothing lately, its broker fails, or models have no worker."""
    row = session.execute(
        text("""
            select value->>'broker_error' as broker_error, value->'unserved' as unserved from service_state
            where name = 'planner' and updated_at > clock_timestamp() - interval '10 s'
        """)
    ).one_or_none()
    if row is None:
        return ["the planner plans nothing: requests are accepted and kept, and none is given to a worker"]
    found = [f"the broker takes no messages, so nothing is given to workers: {row.broker_error}"] * bool(
        row.broker_error
    )
    return found + [
        f"no worker serves the model {model}, for which {count:,} requests wait"
        for model, count in (row.unserved or {}).items()
    ]


def what_is_missing(session: Session, worker_alive_s: float) -> list[str]:
    """Returns the problems that keep requests from being accepted and served as usual, each with its consequence."""
    processes, workers = process_heartbeats.processes(session.connection()), workers_alive(session, worker_alive_s)
    missing = process_heartbeats.missing(processes)
    # without the reason: it is for operators alone
    missing += [
        f"the steps of a process {one.kind} fail, see its log: {process_heartbeats.WHAT_IS_MISSING[one.kind]}"
        for one in process_heartbeats.failing(processes)
    ]
    running = Counter(process.kind for process in processes if not process.silent)
    shortage = connection_shortage(session.connection(), {**running, "web": 1, "worker": workers})
    if shortage is not None:
        missing.append(shortage)
    if not workers:
        missing.append("no worker is alive: requests are accepted and kept, and none is served")
    else:
        missing += fleet_findings(session, worker_alive_s)
    if paused_since(session):
        missing.append("planning is paused: requests are accepted and kept, and none is given to a worker")
    if any(process.works for process in processes if process.kind == "planner"):
        missing += planner_findings(session)
    missing += [
        f"worker {name} takes no messages: compare its MAGNUS_REDIS_URL" for name in workers_not_consuming(session)
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
