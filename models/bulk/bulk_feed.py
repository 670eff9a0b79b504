"""Turns a bulk job's lines into requests: one process at a time claims a job, and each step is one transaction.

A step inserts the requests of the lines that it read and moves the job's `next_line` behind them. A process that is
killed therefore repeats no line and skips none. A step is counted before it reads, so that a line whose check ends the
process is found: each step that does not end is followed by one of fewer lines.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam
from sqlalchemy.dialects.postgresql import JSONB

from models.new_requests import INSERTED_AS_GIVEN, NewRequest
from models.request_ids import new_id
from models.sql import text
from scheduling.request import BACKGROUND_PRIORITY, SERVICE_TIERS, ServiceTier

# One statement for all rows of a step: psycopg's executemany sends one for each.
INSERT_REQUESTS = text("""
    insert into requests (id, arrived_at, tenant, model, base, application, instructions, input, body, prompt_tokens,
        input_tokens, limit_tokens, priority, needs, deadline_at, job_id)
    select id, arrived_at, tenant, model, base, application, instructions, input, body, prompt_tokens, input_tokens,
        limit_tokens, priority, needs, deadline_at, job_id
    from jsonb_to_recordset(:rows) as row (id text, arrived_at timestamptz, tenant text, model text, base text,
        application text, instructions text, input text, body jsonb, prompt_tokens int, input_tokens int,
        limit_tokens int, priority int, needs text[], deadline_at timestamptz, job_id text)
""").bindparams(bindparam("rows", type_=JSONB))
INSERT_LINES = text("""
    insert into bulk_lines (job_id, line, choice, custom_id, request_id, deadline_at, error)
    select :job, line, choice, custom_id, request_id, deadline_at, error
    from jsonb_to_recordset(:rows) as row (line int, choice int, custom_id text, request_id text,
        deadline_at timestamptz, error jsonb)
""").bindparams(bindparam("rows", type_=JSONB))


# For this long after a step began, no other step of the job begins unless this one ends: longer than the time from the
# step's count to its lock. Not tuned.
HELD_S = 2.0
FEWER = 8  # a step has an eighth of the lines of the one before that did not end: 500, 62, 7, 1. Not tuned


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A bulk job whose row this transaction has locked, with the chunk of the file that has its next line."""

    id: str
    tenant: str
    endpoint: str
    next_line: int
    last_line: int
    now: datetime
    expires_at: datetime
    service_tier: ServiceTier  # the tier of its lines
    step_lines: int  # lines that this step may read
    tries: int  # steps that began at `next_line`, with this one; all others did not end
    first_line: int  # the number of the chunk's first line
    chunk_end: int  # the number of its last line
    data: bytes  # the chunk


@dataclass(frozen=True, slots=True)
class NewLine:
    """A line to be stored, with a request for each of its answers or the error that keeps it from becoming any."""

    line: int
    custom_id: str | None
    requests: Sequence[NewRequest] = ()
    error: dict[str, Any] | None = None


def begin_step(connection: Connection, full_tenants: Collection[str]) -> str | None:
    """Counts a step of the job read longest ago and holds the job for 2 s; returns its id, or None without a job.

    Skips jobs that another process has locked and those of `full_tenants`, which may queue no more requests.
    """
    return connection.execute(
        text("""
            update bulk_jobs set fed_at = clock_timestamp() + make_interval(secs => :held_s), tries = tries + 1,
                step_lines = case when tries = 0 then step_lines else greatest(1, step_lines / :fewer) end
            where id = (
                select id from bulk_jobs
                where fed_at <= clock_timestamp() and status in ('validating', 'in_progress') and paused_at is null
                    and next_line <= last_line
                    and expires_at > clock_timestamp() and tenant <> all(cast(:full as text[]))
                    and exists (select from file_chunks where file_id = input_file_id)
                order by fed_at, id limit 1 for update skip locked
            )
            returning id
        """),
        {"full": list(full_tenants), "held_s": HELD_S, "fewer": FEWER},
    ).scalar_one_or_none()


def others_are_served(connection: Connection) -> bool:
    """Returns whether any request that is neither a line nor background work runs or waits for its prediction."""
    return bool(
        connection.execute(
            text("""
                select exists (
                    select from requests
                    where status = 'in_progress' and priority >= :background / 2 and job_id is null
                ) or exists (
                    select from requests
                    where status = 'queued' and predicted_tokens is null and priority >= :background / 2
                        and job_id is null
                )
            """),
            {"background": BACKGROUND_PRIORITY},
        ).scalar_one()
    )


def claim_job(connection: Connection, job_id: str) -> ClaimedJob | None:
    """Locks a job that has lines to read and returns it; None if it has none or another process has locked it."""
    row = connection.execute(
        text("""
            with next_job as (
                select id, tenant, endpoint, input_file_id, next_line, last_line, expires_at, service_tier, step_lines,
                    tries
                from bulk_jobs
                where id = :id and status in ('validating', 'in_progress') and paused_at is null
                    and next_line <= last_line
                for update skip locked
            )
            select j.id, j.tenant, j.endpoint, j.next_line, j.last_line, clock_timestamp() as now, j.expires_at,
                j.service_tier, j.step_lines, j.tries, c.first_line, c.data, coalesce((
                    select min(first_line) - 1 from file_chunks
                    where file_id = j.input_file_id and first_line > j.next_line
                ), j.last_line) as chunk_end
            from next_job j cross join lateral (
                select first_line, data from file_chunks where file_id = j.input_file_id and first_line <= j.next_line
                order by first_line desc limit 1
            ) c
        """),
        {"id": job_id},
    ).one_or_none()
    return None if row is None else ClaimedJob(**{**row._mapping, "data": bytes(row.data)})


def taken_names(connection: Connection, job_id: str, names: Collection[str]) -> set[str]:
    """Returns those of `names` that earlier lines of the job have, counting only lines that became requests.

    Looks each up by itself: statistics are older than a job that is being read, and Postgres would plan to read it all.
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


def write_lines(connection: Connection, job: ClaimedJob, lines: Sequence[NewLine], next_line: int) -> None:
    """Stores these lines, queues their requests, sets the job's next line; the caller has claimed the job."""
    requests: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for line in lines:
        ids: list[str | None] = []
        own_end: datetime | None = None
        for request in line.requests:
            arrived_at = job.now + timedelta(microseconds=len(requests))
            if request.deadline_s is not None:
                own_end = job.now + timedelta(seconds=request.deadline_s)
            requests.append(_row(job, new_id(arrived_at), arrived_at, request, own_end))
            ids.append(requests[-1]["id"])
        of_line = {"line": line.line, "deadline_at": own_end and own_end.isoformat(), "error": line.error}
        for choice, request_id in enumerate(ids or [None]):
            name = None if choice else line.custom_id
            rows.append(of_line | {"choice": choice, "custom_id": name, "request_id": request_id})
    queued = sum(bool(line.requests) for line in lines)
    if requests:
        connection.execute(INSERT_REQUESTS, {"rows": requests})
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


def _row(
    job: ClaimedJob, request_id: str, arrived_at: datetime, new: NewRequest, own_end: datetime | None
) -> dict[str, Any]:
    return {name: getattr(new, name) for name in INSERTED_AS_GIVEN} | {
        "id": request_id,
        "arrived_at": arrived_at.isoformat(),
        "priority": new.priority - SERVICE_TIERS["flex"] + SERVICE_TIERS[job.service_tier],
        "needs": list(new.needs),
        "deadline_at": min(job.expires_at, own_end or job.expires_at).isoformat(),
        "job_id": job.id,
    }
