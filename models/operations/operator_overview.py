"""What the overview shows: requests by stage, and what keeps them from being served; pauses planning."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from models.operations import process_heartbeats
from models.planning import planner_state
from models.sql import text


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests by stage, at one instant of the database's clock."""

    now: datetime
    unpredicted: int  # queued without a length prediction
    unplanned: int  # predicted, not yet fetched by the planner
    waiting: int  # in the queue of a planner's policy
    assigned: int  # in a batch that its worker has not taken
    running: int  # in any open batch, taken or not
    oldest_s: float | None  # age of the oldest queued request
    finished_minute: int  # answers of the last 60 s
    tokens_minute: int  # tokens of these answers
    workers_alive: int

    @property
    def queued(self) -> int:
        """All queued requests."""
        return self.unpredicted + self.unplanned + self.waiting


def request_counts(session: Session, worker_alive_s: float) -> RequestCounts:
    """Counts requests through the partial indexes of unfinished ones, so that old answers cost no time."""
    row = session.execute(
        text("""
            with counts as (
                select (select count(*) from requests where status = 'queued') as queued,
                    (select count(*) from requests where status = 'queued' and planner_epoch = 0) as unfed,
                    (select count(*) from requests where status = 'queued' and predicted_tokens is null) as unpredicted
            ), flight as (
                select count(*) as running, count(*) filter (where b.status = 'assigned') as assigned
                from requests r left join batches b on b.id = r.batch_id where r.status = 'in_progress'
            ), oldest as (
                select arrived_at from requests
                where status = 'queued' order by arrived_at limit 1
            ), minute as (
                select count(*) as finished, coalesce(sum(output_tokens), 0) as tokens from requests
                where finished_at > statement_timestamp() - interval '60 s' and status in ('completed', 'incomplete')
            )
            select clock_timestamp() as now, unpredicted, unfed - unpredicted as unplanned, queued - unfed as waiting,
                assigned, running,
                extract(epoch from clock_timestamp() - (select arrived_at from oldest))::float8 as oldest_s,
                minute.finished as finished_minute, minute.tokens as tokens_minute,
                (select count(*) from workers where stopped_at is null
                    and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s)) as workers_alive
            from counts, flight, minute
        """),
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
            select name from workers where not_consuming_since is not null and stopped_at is null
                and heartbeat_at > statement_timestamp() - interval '1 day' order by name
        """)
    )
    return [row.name for row in rows]


def what_is_missing(session: Session, worker_alive_s: float) -> list[str]:
    """Returns the problems that keep accepted requests from being served as usual, each with its consequence."""
    missing = process_heartbeats.missing(process_heartbeats.processes(session.connection()))
    if not workers_alive(session, worker_alive_s):
        missing.append("no worker is alive: requests are accepted and kept, and none is served")
    missing += [
        f"worker {name} takes no messages: compare its MAGNUS_REDIS_URL" for name in workers_not_consuming(session)
    ]
    return missing


def paused_since(session: Session) -> datetime | None:
    """Returns since when planning is paused; None if it is not paused."""
    row = session.execute(
        text("select updated_at from service_state where name = 'pause' and (value->>'paused')::bool")
    ).one_or_none()
    return row.updated_at if row else None


def set_paused(session: Session, paused: bool) -> None:
    """Pauses or resumes planning; while it is paused, the planner assigns nothing."""
    planner_state.write_service_state(session.connection(), "pause", {"paused": paused})
    session.commit()
