"""What the overview shows: requests by stage, answers by application, and what keeps them from being served."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from models.operations import process_heartbeats
from models.sql import text

# Newest answers of the last hour that the figures by application are computed from. It bounds the time of the query
# under heavy traffic; not tuned.
MOST_ANSWERS = 5000
MOST_APPLICATIONS = 50  # rows of the page's table, those with the most answers; a longer table is not readable


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
    tokens_minute: int  # their tokens
    workers_alive: int

    @property
    def queued(self) -> int:
        """All queued requests."""
        return self.unpredicted + self.unplanned + self.waiting


def request_counts(session: Session, worker_alive_s: float) -> RequestCounts:
    """Counts the requests through partial indexes of unfinished requests, so that old answers cost no time."""
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
    """How many workers have a heartbeat that is at most `worker_alive_s` old."""
    alive = text("""select count(*) from workers where stopped_at is null
        and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s)""")
    return int(session.execute(alive, {"alive_s": worker_alive_s}).scalar_one())


def deaf_workers(session: Session) -> list[str]:
    """Workers that get no batch because they took none of several messages, by name."""
    rows = session.execute(
        text("""
            select name from workers where not_consuming_since is not null and stopped_at is null
                and heartbeat_at > statement_timestamp() - interval '1 day' order by name
        """)
    )
    return [row.name for row in rows]


def what_is_missing(session: Session, worker_alive_s: float) -> list[str]:
    """What keeps accepted requests from being served as usual, each with its consequence; empty if nothing does."""
    missing = process_heartbeats.missing(process_heartbeats.processes(session.connection()))
    if not workers_alive(session, worker_alive_s):
        missing.append("no worker is alive: requests are accepted and kept, and none is served")
    missing += [f"worker {name} takes no messages: compare its MAGNUS_REDIS_URL" for name in deaf_workers(session)]
    return missing


@dataclass(frozen=True, slots=True)
class Application:
    """An application's answers among the newest MOST_ANSWERS of the last hour; times in seconds, lengths in tokens."""

    name: str
    answers: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    mean_predicted: float | None
    mean_actual: float
    rmse: float | None


def applications(session: Session) -> list[Application]:
    """Response times and predictions by application, the one with the most answers first."""
    rows = session.execute(
        text("""
            with answers as (
                select application, output_tokens, predicted_tokens,
                    extract(epoch from finished_at - arrived_at)::float8 as response_s
                from requests
                where finished_at > statement_timestamp() - interval '1 h' and status in ('completed', 'incomplete')
                order by finished_at desc limit :most
            ), grouped as (
                select application, count(*) as answers,
                    percentile_cont(array[0.5, 0.95, 0.99, 1]) within group (order by response_s) as response_s,
                    avg(predicted_tokens)::float8 as mean_predicted, avg(output_tokens)::float8 as mean_actual,
                    sqrt(avg((predicted_tokens - output_tokens)::float8 ^ 2)) as rmse
                from answers group by application
            )
            select application, answers, response_s[1], response_s[2], response_s[3], response_s[4],
                mean_predicted, mean_actual, rmse
            from grouped order by answers desc, application limit :most_applications
        """),
        {"most": MOST_ANSWERS, "most_applications": MOST_APPLICATIONS},
    )
    return [Application(*row) for row in rows]
