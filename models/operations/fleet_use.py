"""The fleet for the dashboard: each worker with its rows, memory and batches over time; drains and resumes workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from models.sql import text

# The newest ended batches, from which the workers' timelines are drawn; more would be too narrow to be seen. Bounds the
# query; not tuned.
MOST_BATCHES = 4000
MOST_ROWS, MOST_OF_WORKER = 200, 20  # running rows that the page lists, in all and of one worker; not tuned
# The states in which a worker gets batches, now or once it has loaded its next model.
TAKES_BATCHES = ("changing", "running", "batch_sent", "idle")


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """A worker with a heartbeat within the last day; `rows` counts the rows of its open batches, memory is in tokens.

    `held_tokens` is the memory of its rows by the last heartbeat, `reserved_tokens` their memory if each reaches the
    upper quantile of its length. `lasting` counts open batches that it has taken, `sent` those that it has not taken.
    """

    name: str
    model: str
    device: str
    version: str | None
    theta_bytes: int
    delta_bytes: int
    heartbeat_age_s: float
    up_s: float  # seconds since its process started
    stopped: bool
    stopping: bool
    not_consuming: bool
    drained: bool
    fault: str | None
    rows: int
    held_tokens: int
    reserved_tokens: int
    lasting: int
    sent: int
    out_of_memory: int  # batches that ran out of memory in the last hour
    guessed_tokens: int  # since it started
    right_guesses: int
    change_s: Mapping[str, float] = field(default_factory=dict)  # by model that it can load: the seconds of a change
    wanted_model: str | None = None  # the model that it was told to change to
    model_changes: int = 0  # since its process started

    @property
    def capacity_tokens(self) -> int:
        """Its memory for the KV cache, Θ, in tokens."""
        return self.theta_bytes // self.delta_bytes

    @property
    def memory_in_tokens(self) -> bool:
        """Whether its memory is only known in tokens, as that of a remote server; a token then counts as one byte."""
        return self.delta_bytes == 1

    def state(self, alive_s: float) -> str:
        """Returns the worker's state in a word or two; it gets batches only in the states of TAKES_BATCHES."""
        states = {
            "stopped": self.stopped,
            "lost": self.heartbeat_age_s > alive_s,
            "takes_no_messages": self.not_consuming,
            "set_aside": self.fault is not None,
            "stopping": self.stopping,
            "drained": self.drained and not self.lasting,
            "draining": self.drained,
            "changing": self.wanted_model not in (None, self.model),
            "running": self.lasting > 0,
            "batch_sent": self.sent > 0,
        }
        return next((state for state, holds in states.items() if holds), "idle")


@dataclass(frozen=True, slots=True)
class FleetState:
    """All workers, the batches that they served lately, and the requests that they serve now."""

    workers: list[WorkerUse]
    batches: "list[BatchSpan]"
    running: "list[RunningRequest]"


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """A batch that a worker has taken; `finished_at` is None while it runs."""

    id: int
    worker: str
    status: str
    joins: bool
    size: int
    started_at: datetime
    finished_at: datetime | None
    estimated_s: float
    valid_tokens: int


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request in a batch that its worker has taken; `tokens` are those of the worker's last heartbeat."""

    id: str
    worker: str
    application: str
    batch_id: int
    tokens: int
    predicted_tokens: int | None
    limit_tokens: int
    running_s: float


def workers_in_use(session: Session) -> list[WorkerUse]:
    """Returns every worker with a heartbeat within the last day, by name."""
    rows = session.execute(
        text("""
            with open_rows as (
                select b.worker, r.prompt_tokens, least(coalesce(r.predicted_upper_tokens, r.limit_tokens),
                        r.limit_tokens) as upper,
                    cardinality(r.generated_ids) + case when b.status = 'running' then b.progress_tokens else 0 end
                        as tokens
                from batches b join requests r on r.batch_id = b.id and r.status = 'in_progress'
                where b.status in ('assigned', 'running')
            ), used as (
                select worker, count(*) as rows, sum(prompt_tokens + tokens) as held,
                    sum(prompt_tokens + greatest(upper, tokens)) as reserved,
                    count(*) * max(prompt_tokens + tokens) as held_rectangle,
                    count(*) * max(prompt_tokens + greatest(upper, tokens)) as reserved_rectangle
                from open_rows group by worker
            ), memory as (
                select w.name, case when w.paged then u.held else u.held_rectangle end as held,
                    case when w.paged then u.reserved else u.reserved_rectangle end as reserved,
                    u.rows * w.window_tokens as windows, w.windowed_bytes::float8 / w.delta_bytes as windowed_share
                from workers w join used u on u.worker = w.name
            ), opened as (
                select worker, count(*) filter (where status = 'running') as lasting,
                    count(*) filter (where status = 'assigned') as sent
                from batches where status in ('assigned', 'running') group by worker
            ), outgrew as (
                select worker, count(*) as batches from batches
                where status = 'out_of_memory' and finished_at > statement_timestamp() - interval '1 h' group by worker
            )
            select w.name, w.model, w.device, w.version, w.theta_bytes, w.delta_bytes,
                extract(epoch from clock_timestamp() - w.heartbeat_at)::float8 as heartbeat_age_s,
                extract(epoch from clock_timestamp() - w.started_at)::float8 as up_s,
                w.stopped_at is not null as stopped, w.stopping, w.not_consuming_since is not null as not_consuming,
                w.drained_at is not null as drained, w.fault, coalesce(u.rows, 0) as rows,
                coalesce(k.held - k.windowed_share * greatest(0, k.held - k.windows), 0)::bigint as held_tokens,
                coalesce(k.reserved - k.windowed_share * greatest(0, k.reserved - k.windows), 0)::bigint
                    as reserved_tokens,
                coalesce(o.lasting, 0) as lasting, coalesce(o.sent, 0) as sent, coalesce(m.batches, 0) as out_of_memory,
                w.guessed_tokens, w.right_guesses, w.wanted_model, w.model_changes, coalesce((
                    select jsonb_object_agg(key, value->'change_s') from jsonb_each(w.loadable)), '{}') as change_s
            from workers w left join used u on u.worker = w.name left join memory k on k.name = w.name
                left join opened o on o.worker = w.name
                left join outgrew m on m.worker = w.name
            where w.heartbeat_at > statement_timestamp() - interval '1 day'
            order by w.name
        """)
    )
    return [WorkerUse(**row._mapping) for row in rows]


def served_batches(session: Session, back_s: float) -> list[BatchSpan]:
    """Returns running batches, and the newest MOST_BATCHES of those that ended within the last `back_s`."""
    columns = "id, worker, status, joins, size, started_at, finished_at, estimated_s"
    rows = session.execute(
        text(f"""
            select {columns}, 0 as valid_tokens from batches where status = 'running' and started_at is not null
            union all
            (select {columns}, coalesce(valid_tokens, 0) from batches
            where finished_at is not null and finished_at > statement_timestamp() - make_interval(secs => :back_s)
                and started_at is not null
            order by finished_at desc limit :most)
        """),  # noqa: S608  # names of columns
        {"back_s": back_s, "most": MOST_BATCHES},
    )
    return [BatchSpan(**row._mapping) for row in rows]


def running_requests(session: Session) -> list[RunningRequest]:
    """Returns at most MOST_OF_WORKER requests that each worker serves now, of its oldest batches; MOST_ROWS in all."""
    rows = session.execute(
        text("""
            select id, worker, application, batch_id, tokens, predicted_tokens, limit_tokens, running_s from (
                select r.id, b.worker, r.application, b.id as batch_id,
                    cardinality(r.generated_ids) + b.progress_tokens as tokens, r.predicted_tokens, r.limit_tokens,
                    extract(epoch from clock_timestamp() - b.started_at)::float8 as running_s,
                    row_number() over (partition by b.worker order by b.id, r.id) as place
                from (
                    select id, worker, progress_tokens, started_at from batches
                    where status = 'running' and started_at is not null
                ) b cross join lateral (
                    select id, application, generated_ids, predicted_tokens, limit_tokens from requests
                    where batch_id = b.id and status = 'in_progress'
                ) r
            ) numbered where place <= :of_worker order by place, worker limit :most
        """),
        {"most": MOST_ROWS, "of_worker": MOST_OF_WORKER},
    )
    return [RunningRequest(**row._mapping) for row in rows]


def set_drained(session: Session, worker: str, drained: bool) -> bool:
    """Keeps new batches from a worker, or allows them again; returns False if there is no worker of this name."""
    changed = session.execute(
        text("""
            update workers set drained_at = case when :drained then coalesce(drained_at, clock_timestamp()) end
            where name = :worker returning name
        """),
        {"worker": worker, "drained": drained},
    ).one_or_none()
    session.commit()
    return changed is not None
