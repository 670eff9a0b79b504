"""Reads the fleet for the dashboard: each worker's rows, memory and batches over time; drains and resumes workers."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from models.connections.sql import text
from models.registered_workers import DAY_S, RegisteredWorker, WorkerLoad, registered_workers
from scheduling.kv_memory import KvMemory

# The workers' timelines are drawn from at most this many newest ended batches, which bounds the query; more of them
# would be too narrow to be seen. Not tuned.
MOST_BATCHES = 4000
MOST_ROWS, MOST_OF_WORKER = 200, 20  # the page lists this many running rows in all, and of one worker; not tuned
# Finds workers of which ten or more answers, and more than half, are empty among the last hour's newest 200. Not tuned.
EMPTY_ANSWERS = """select worker, count(*) filter (where output_text = '') || ' of its last ' || count(*) as empty
    from (select batch_id, output_text from requests where status in ('completed', 'incomplete')
        and finished_at > statement_timestamp() - interval '1 h' order by finished_at desc limit 200) answers
    join batches on id = batch_id group by worker
    having count(*) filter (where output_text = '') > greatest(9, count(*) / 2)"""
# The remedy that the dashboard and `magnus doctor` name for such workers.
ASK_THE_SAME = (
    "ask its server the same: compare its model, chat template and stop tokens with those that the worker expects"
)


@dataclass(frozen=True, slots=True)
class FleetState:
    """All workers, the batches that they served lately, the requests that they serve now, and their empty answers."""

    workers: list[RegisteredWorker]
    batches: "list[BatchSpan]"
    running: "list[RunningRequest]"
    empty: dict[str, str]


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
    """A request in a batch that its worker has taken; it had `tokens` of its answer at the worker's last heartbeat."""

    id: str
    worker: str
    application: str
    batch_id: int
    tokens: int
    predicted_tokens: int | None
    limit_tokens: int
    running_s: float


def empty_answers(session: Session) -> dict[str, str]:
    """Returns the workers that EMPTY_ANSWERS finds, each with how many of its last answers are empty."""
    return {row.worker: row.empty for row in session.execute(text(EMPTY_ANSWERS))}


def workers_in_use(session: Session) -> list[RegisteredWorker]:
    """Returns every worker with a heartbeat within the last day, with its load, ordered by name."""
    rows = session.execute(
        text("""
            select worker, sum(rows)::int as rows, sum(held)::bigint as held, max(held) as longest_held,
                sum(reserved)::bigint as reserved, max(reserved) as longest_reserved, sum(lasting)::int as lasting,
                sum(sent)::int as sent, sum(out_of_memory)::int as out_of_memory
            from (
                select worker, 1 as rows, prompt_tokens + tokens as held, prompt_tokens + greatest(upper, tokens)
                    as reserved, 0 as lasting, 0 as sent, 0 as out_of_memory
                from (
                    select b.worker, r.prompt_tokens, least(coalesce(r.predicted_upper_tokens, r.limit_tokens),
                            r.limit_tokens) as upper,
                        cardinality(r.generated_ids) + case when b.status = 'running' then b.progress_tokens else 0 end
                            as tokens
                    from batches b join requests r on r.batch_id = b.id and r.status = 'in_progress'
                    where b.status in ('assigned', 'running')
                ) open_rows
                union all
                select worker, 0, 0, 0, (status = 'running')::int, (status = 'assigned')::int, 0
                from batches where status in ('assigned', 'running')
                union all
                select worker, 0, 0, 0, 0, 0, 1 from batches
                where status = 'out_of_memory' and finished_at > statement_timestamp() - interval '1 h'
            ) counted group by worker
        """)
    )
    loads = {row.worker: row for row in rows}
    workers = registered_workers(session.connection(), DAY_S)
    return [replace(one, load=_load(one.memory, loads[one.name])) if one.name in loads else one for one in workers]


def _load(memory: KvMemory, row: Row[Any]) -> WorkerLoad:
    return WorkerLoad(
        rows=row.rows,
        held_tokens=_tokens(memory, row.rows, row.held, row.longest_held),
        reserved_tokens=_tokens(memory, row.rows, row.reserved, row.longest_reserved),
        lasting=row.lasting,
        sent=row.sent,
        out_of_memory=row.out_of_memory,
    )


def _tokens(memory: KvMemory, rows: int, total: int, longest: int) -> int:
    """Returns the estimated memory of these rows in tokens, without the unused ends of their blocks."""
    return round(memory.held(total if memory.paged else rows * longest, rows))


def served_batches(session: Session, back_s: float) -> list[BatchSpan]:
    """Returns running batches, and the newest MOST_BATCHES batches that ended within the last `back_s`."""
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
    """Returns up to MOST_OF_WORKER requests that each worker serves now, oldest batches first; MOST_ROWS in all."""
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
