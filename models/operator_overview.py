"""What the operator's page shows: requests by stage, answers by application, what each worker does, learned models."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from models import process_heartbeats

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


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker with the newest batch that it runs, if any; ages in seconds by the database's clock."""

    name: str
    model: str
    device: str
    theta_bytes: int
    delta_bytes: int
    heartbeat_age_s: float
    stopped: bool
    not_consuming: bool  # it took none of several messages, and gets no batch until it has taken one
    assigned: int  # batches that it has not taken yet
    batch_id: int | None
    size: int | None
    length: int | None
    predicted_generation_length: int | None
    progress_tokens: int | None
    estimated_s: float | None
    running_s: float | None
    fault: str | None = None

    @property
    def memory_in_tokens(self) -> bool:
        """Whether its memory is known in tokens only, as that of a server is: a token then counts as one byte."""
        return self.delta_bytes == 1

    def state(self, alive_s: float) -> str:
        """`stopped`, `lost` if the heartbeat is older than `alive_s`, `takes_no_messages`, `running` or `idle`.

        Or `set_aside`: its engine has a fault, and it gets no batch until that is over.
        """
        if self.stopped:
            return "stopped"
        if self.heartbeat_age_s > alive_s:
            return "lost"
        if self.not_consuming:
            return "takes_no_messages"
        if self.fault is not None:
            return "set_aside"
        return "running" if self.batch_id is not None else "idle"


def workers(session: Session) -> list[WorkerState]:
    """Every worker with a heartbeat within the last day, by name."""
    rows = session.execute(
        text("""
            select w.name, w.model, w.device, w.theta_bytes, w.delta_bytes,
                extract(epoch from clock_timestamp() - w.heartbeat_at)::float8 as heartbeat_age_s,
                w.stopped_at is not null as stopped, w.not_consuming_since is not null as not_consuming,
                w.fault,
                (select count(*) from batches a where a.worker = w.name and a.status = 'assigned') as assigned,
                b.id as batch_id, b.size, b.length, b.predicted_generation_length, b.progress_tokens, b.estimated_s,
                extract(epoch from clock_timestamp() - coalesce(b.started_at, b.assigned_at))::float8 as running_s
            from workers w left join lateral (
                select * from batches b where b.worker = w.name and b.status = 'running' order by b.id desc limit 1
            ) b on true
            where w.heartbeat_at > statement_timestamp() - interval '1 day'
            order by w.name
        """)
    )
    return [WorkerState(**row._mapping) for row in rows]


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """A published model in service, with its scores on held-out answers and the data that it was trained on."""

    kind: str
    version: str
    created_at: datetime
    scores: dict[str, Any]
    data: dict[str, Any]


def learned_models(session: Session) -> list[LearnedModel]:
    """The published models in service, by kind."""
    rows = session.execute(
        text("select kind, version, created_at, scores, data from model_versions where active order by kind")
    )
    return [LearnedModel(**row._mapping) for row in rows]
