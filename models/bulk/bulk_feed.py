"""Turns a bulk job's lines into requests: a step holds its job for seconds and stores its lines in one transaction.

That transaction inserts the requests of the lines and moves the job's `next_line` behind them. A process that is
killed therefore repeats no line and skips none. A step is counted before it reads, so that a line whose check kills the
process is found: after a step that did not end, the next step reads fewer lines.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam
from sqlalchemy.dialects.postgresql import JSONB

from models import new_requests
from models.bulk.bulk_tables import WITHIN_BUDGET
from models.connections.sql import text
from models.new_requests import NewRequest
from scheduling.request import ServiceTier

INSERT_LINES = text("""
    insert into bulk_lines (job_id, line, choice, custom_id, request_id, deadline_at, error)
    select :job, line, choice, custom_id, request_id, deadline_at, error
    from jsonb_to_recordset(:rows) as row (line int, choice int, custom_id text, request_id text,
        deadline_at timestamptz, error jsonb)
""").bindparams(bindparam("rows", type_=JSONB))


# No other step of a job begins within this time, unless the first one ends: even on a busy machine a step takes less.
# If a step reads for longer, another process reads the same lines, and one of the two stores them. Not tuned.
HELD_S = 10.0
FEWER = 8  # after a step that did not end, the next one has an eighth of its lines: 500, 62, 7, 1. Not tuned


@dataclass(frozen=True, slots=True)
class JobStep:
    """A bulk job of which a step reads lines, with the chunk of the file that has its next line."""

    id: str
    tenant: str
    endpoint: str
    next_line: int
    last_line: int
    now: datetime
    expires_at: datetime
    service_tier: ServiceTier  # the tier of its lines
    step_lines: int  # lines that this step may read
    tries: int  # steps that began at `next_line`: this one and earlier ones, which did not end
    first_line: int  # the number of the chunk's first line
    chunk_end: int  # the number of the chunk's last line
    data: bytes  # the chunk's content


@dataclass(frozen=True, slots=True)
class NewLine:
    """A line to be stored, with a request for each of its answers, or with the error because of which it is refused."""

    line: int
    custom_id: str | None
    requests: Sequence[NewRequest] = ()
    error: dict[str, Any] | None = None


def begin_step(connection: Connection, full_tenants: Collection[str]) -> str | None:
    """Counts a step of the job read longest ago and holds that job for HELD_S; returns its id, or None without a job.

    Skips jobs that another process has locked and those of `full_tenants`, which may queue no more requests.
    """
    return connection.execute(
        text(f"""
            update bulk_jobs set fed_at = clock_timestamp() + make_interval(secs => :held_s), tries = tries + 1,
                step_lines = case when tries = 0 then step_lines else greatest(1, step_lines / :fewer) end
            where id = (
                select id from bulk_jobs
                where fed_at <= clock_timestamp() and status in ('validating', 'in_progress') and paused_at is null
                    and next_line <= last_line and {WITHIN_BUDGET}
                    and expires_at > clock_timestamp() and tenant <> all(cast(:full as text[]))
                    and exists (select from file_chunks where file_id = input_file_id)
                order by fed_at, id limit 1 for update skip locked
            )
            returning id
        """),  # noqa: S608  # a constant
        {"full": list(full_tenants), "held_s": HELD_S, "fewer": FEWER},
    ).scalar_one_or_none()


def others_are_served(connection: Connection) -> bool:
    """Returns whether any request that is neither a line nor background work runs or waits for its prediction."""
    return bool(
        connection.scalar(
            text("""
                select exists (
                    select from requests where status = 'in_progress' and tier > 'flex' and job_id is null
                ) or exists (
                    select from requests
                    where status = 'queued' and predicted_tokens is null and tier > 'flex' -- as the index is ordered
                        and job_id is null
                )
            """)
        )
    )


def read_step(connection: Connection, job_id: str) -> JobStep | None:
    """Returns the job with what a step reads, or None if it has no lines to read any more; locks nothing."""
    row = connection.execute(
        text("""
            select j.id, j.tenant, j.endpoint, j.next_line, j.last_line, clock_timestamp() as now, j.expires_at,
                j.service_tier, j.step_lines, j.tries, c.first_line, c.data, coalesce((
                    select min(first_line) - 1 from file_chunks
                    where file_id = j.input_file_id and first_line > j.next_line
                ), j.last_line) as chunk_end
            from bulk_jobs j cross join lateral (
                select first_line, data from file_chunks where file_id = j.input_file_id and first_line <= j.next_line
                order by first_line desc limit 1
            ) c
            where j.id = :id and j.status in ('validating', 'in_progress') and j.paused_at is null
                and j.next_line <= j.last_line
        """),
        {"id": job_id},
    ).one_or_none()
    return None if row is None else JobStep(**{**row._mapping, "data": bytes(row.data)})


def lock_step(connection: Connection, job: JobStep) -> JobStep | None:
    """Locks the job's row and returns the job as it is now; None if it was stopped or another step stored its lines."""
    row = connection.execute(
        text("""
            select clock_timestamp() as now, expires_at, service_tier from bulk_jobs
            where id = :id and next_line = :next_line and status in ('validating', 'in_progress') and paused_at is null
            for update
        """),
        {"id": job.id, "next_line": job.next_line},
    ).one_or_none()
    return None if row is None else replace(job, **row._mapping)


def taken_names(connection: Connection, job_id: str, names: Collection[str]) -> set[str]:
    """Returns those `names` that earlier lines of the job have; only lines that became requests count.

    Looks up each name by itself: Postgres's statistics are older than the job, so it would plan to read all its lines.
    """
    rows = connection.execute(
        text("""
            select name from unnest(cast(:names as text[])) name cross join lateral (
                select from bulk_lines where job_id = :job and custom_id = name and request_id is not null limit 1
            ) earlier
        """),
        {"job": job_id, "names": list(names)},
    )
    return {row.name for row in rows}


def write_lines(connection: Connection, job: JobStep, lines: Sequence[NewLine], next_line: int) -> None:
    """Stores these lines, queues their requests, sets the job's next line; the caller has locked the job."""
    requests: list[NewRequest] = []
    rows: list[dict[str, Any]] = []
    for line in lines:
        deadline_s = line.requests[0].deadline_s if line.requests else None
        own_end = None if deadline_s is None else job.now + timedelta(seconds=deadline_s)
        ends_at = min(job.expires_at, own_end or job.expires_at)
        requests += [replace(one, tier=job.service_tier, job_id=job.id, deadline_at=ends_at) for one in line.requests]
        of_line = {"line": line.line, "deadline_at": own_end and own_end.isoformat(), "error": line.error}
        names = [line.custom_id, *[None] * (len(line.requests) - 1)]
        rows += [of_line | {"choice": choice, "custom_id": name} for choice, name in enumerate(names)]
    ids = (view.request.id for view in new_requests.insert(connection, requests))
    rows = [row if row["error"] else row | {"request_id": next(ids)} for row in rows]
    queued = sum(bool(line.requests) for line in lines)
    if rows:
        connection.execute(INSERT_LINES, {"job": job.id, "rows": rows})
    connection.execute(
        text("""
            update bulk_jobs set next_line = :next_line, queued = queued + :queued, failed = failed + :failed,
                status = case when status = 'validating' and :queued > 0 then 'in_progress' else status end,
                in_progress_at = case when status = 'validating' and :queued > 0 then clock_timestamp()
                    else in_progress_at end
            where id = :id
        """),
        {"id": job.id, "next_line": next_line, "queued": queued, "failed": len(lines) - queued},
    )


def end_step(connection: Connection, job_id: str, most_lines: int) -> None:
    """Ends a step of the job; the next one may have twice the lines, up to `most_lines`."""
    connection.execute(
        text("""
            update bulk_jobs set fed_at = clock_timestamp(), tries = 0, step_lines = least(:most, 2 * step_lines)
            where id = :id
        """),
        {"id": job_id, "most": most_lines},
    )
