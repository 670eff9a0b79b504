"""Counts the ended lines of bulk jobs, applies changes of a job to its unfinished lines, stops jobs, and ends them.

Queries join requests to lines by `lateral` with `offset 0` or with a lock: otherwise Postgres may plan to read all
requests. A process locks the row of the job that it counts, so that several processes count different jobs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from models.bulk.bulk_tables import BulkStatus
from models.bulk.stored_files import new_file_id
from models.client_requests import CANCEL
from models.connections.sql import text

CHANGED_AT_ONCE = 2000  # requests that one statement changes: their rows are locked for some hundredths of a second
# The share of a process's time that counting may take: 50,000 lines take some 0.1 s and are then counted every 5 s.
COUNTING_SHARE = 0.02
# Two counts are at most LONGEST_PAUSE_S and PAUSE_OF_A_LINE_S per line apart. On a busy machine a count waits for the
# processor longer than it computes: by the share alone, a job of 2,000 lines ended two minutes after its last answer.
LONGEST_PAUSE_S, PAUSE_OF_A_LINE_S = 10.0, 1e-4
SHOWN_ERRORS = 100  # errors that a job without any valid line shows: enough to see what is wrong


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A bulk job whose row this transaction has locked."""

    id: str
    tenant: str
    endpoint: str
    status: BulkStatus
    all_read: bool
    expired: bool
    queued: int
    output_file_id: str | None
    error_file_id: str | None
    lines: int = 0
    untold: bool = False  # whether unfinished requests still lack a change of the job

    @property
    def stopped(self) -> bool:
        """Whether the job's remaining requests are to be cancelled rather than served."""
        return self.expired or self.status is BulkStatus.cancelling


@dataclass(frozen=True, slots=True)
class LineCounts:
    """The numbers of a job's lines by state, and the work of its requests, as far as its lines were read.

    `unserved` lines were not served because the job was stopped.
    """

    completed: int
    failed: int
    unfinished: int
    unserved: int
    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    longest: int = 0  # tokens of the longest answer
    done_tokens: int = 0
    left_requests: int = 0
    left_prompt_tokens: int = 0
    left_answer_tokens: int = 0
    usage: Mapping[str, int] = field(default_factory=dict)  # tokens of the answered lines, as each line counts them

    def left_work(self, lines: int) -> dict[str, int]:
        """Returns `Work`'s fields for the rest of a job of `lines` lines; takes unread lines to be like read ones."""
        read = self.completed + self.failed + self.unfinished + self.unserved
        unread = max(0, lines - read) / max(1, read)
        sums = {"requests": "requests", "prefill": "prompt_tokens", "remaining": "answer_tokens"}
        return {
            name: round(getattr(self, f"left_{column}") + unread * getattr(self, column))
            for name, column in sums.items()
        } | {"longest": self.longest}


def take_job(connection: Connection) -> WatchedJob | None:
    """Locks a job that has not ended and whose lines are due to be counted; None if there is no such unlocked job."""
    row = connection.execute(
        text("""
            select id, tenant, endpoint, status, next_line > last_line as all_read,
                expires_at <= coalesce(finalizing_at, clock_timestamp()) as expired, untold, queued, lines,
                output_file_id, error_file_id
            from bulk_jobs
            where status in ('validating', 'in_progress', 'finalizing', 'cancelling') and look_at <= clock_timestamp()
            order by look_at limit 1 for update skip locked
        """)
    ).one_or_none()
    return None if row is None else WatchedJob(**{**row._mapping, "status": BulkStatus(row.status)})


def stop_lines(connection: Connection, job_id: str) -> int:
    """Cancels up to CHANGED_AT_ONCE of a job's requests, queued ones at once; returns how many it cancelled."""
    which = """
        select r.id from bulk_lines l cross join lateral (
            select id from requests where id = l.request_id
                and (status = 'queued' or status = 'in_progress' and cancel_requested_at is null)
            for update skip locked
        ) r
        where l.job_id = :job limit :most
    """
    return connection.execute(text(CANCEL.format(which=which)), {"job": job_id, "most": CHANGED_AT_ONCE}).rowcount


# The unfinished requests of a job that differ from it in pause, deadline or tier, with the values to set.
UNTOLD = """
    select q.id, j.paused_at is not null as paused, least(j.expires_at, l.deadline_at) as ends_at, j.service_tier
    from bulk_jobs j join bulk_lines l on l.job_id = j.id cross join lateral (
        select id from requests where id = l.request_id and status in ('queued', 'in_progress')
            and (held <> (j.paused_at is not null) or deadline_at is distinct from least(j.expires_at, l.deadline_at)
                or tier <> j.service_tier)
        {lock}
    ) q where j.id = :job
"""


def tell_lines(connection: Connection, job_id: str) -> int:
    """Gives up to CHANGED_AT_ONCE unfinished requests the pause, end and tier of their job; returns the number.

    Skips rows that another transaction has locked. Sets `untold` to false once no such request is left.
    """
    connection.execute(text("select from bulk_jobs where id = :job for update"), {"job": job_id})
    told = connection.execute(
        text(f"""
            update requests r set held = t.paused, deadline_at = t.ends_at, tier = t.service_tier, planner_epoch = 0
            from ({UNTOLD.format(lock="for update skip locked")} limit :most) t where r.id = t.id
        """),  # noqa: S608  # a constant
        {"job": job_id, "most": CHANGED_AT_ONCE},
    ).rowcount
    if told < CHANGED_AT_ONCE:
        left = f"exists({UNTOLD.format(lock='offset 0')})"
        connection.execute(text(f"update bulk_jobs set untold = {left} where id = :job"), {"job": job_id})  # noqa: S608
    return told


def count_lines(connection: Connection, job_id: str) -> LineCounts:
    """Counts a job's lines by state, a line with several answers once; takes 0.1 s for 50,000 lines."""
    row = connection.execute(
        text("""
            select count(*) filter (where worst = 0) as completed, count(*) filter (where worst = 2) as failed,
                count(*) filter (where worst = 3) as unfinished, count(*) filter (where worst = 1) as unserved,
                coalesce(sum(requests), 0)::int as requests, coalesce(sum(prompt), 0)::bigint as prompt_tokens,
                coalesce(sum(answer), 0)::bigint as answer_tokens, coalesce(max(longest), 0) as longest,
                coalesce(sum(done), 0)::bigint as done_tokens, coalesce(sum(left_requests), 0)::int as left_requests,
                coalesce(sum(left_prompt), 0)::bigint as left_prompt_tokens,
                coalesce(sum(left_answer), 0)::bigint as left_answer_tokens, jsonb_build_object(
                    'input_tokens', coalesce(sum(asked) filter (where worst = 0), 0),
                    'cached_tokens', coalesce(sum(cached) filter (where worst = 0), 0),
                    'output_tokens', coalesce(sum(answer) filter (where worst = 0), 0),
                    'reasoning_tokens', coalesce(sum(reasoning) filter (where worst = 0), 0)) as usage
            from (
                select max(case
                    when r.status in ('completed', 'incomplete') then 0
                    when r.status in ('queued', 'in_progress') then 3
                    when stopped and (r.status = 'cancelled'
                        or r.status = 'failed' and r.error->>'code' = 'deadline_exceeded') then 1
                    else 2 end) as worst,
                    count(r.status) as requests, sum(r.prompt) as prompt, sum(r.answer) as answer,
                    max(r.answer) as longest, sum(r.prompt + r.answer) filter (where r.ended) as done,
                    count(r.status) filter (where not r.ended) as left_requests,
                    sum(r.prompt) filter (where not r.ended) as left_prompt,
                    sum(r.answer) filter (where not r.ended) as left_answer,
                    -- of several answers to a prompt, the first counts it
                    sum(r.prompt) filter (where l.choice = 0) as asked,
                    sum(cached_tokens) filter (where l.choice = 0) as cached, sum(reasoning_tokens) as reasoning
                from bulk_lines l
                left join lateral (
                    select status, error, cached_tokens, reasoning_tokens, prompt_tokens as prompt,
                        status not in ('queued', 'in_progress') as ended,
                        case when finished_at is null then least(coalesce(predicted_tokens, limit_tokens), limit_tokens)
                            else coalesce(output_tokens, 0) end as answer
                    from requests where id = l.request_id offset 0
                ) r on true
                cross join (
                    select status = 'cancelling' or expires_at <= coalesce(finalizing_at, clock_timestamp()) as stopped
                    from bulk_jobs where id = :job
                ) j
                where l.job_id = :job group by l.line
            ) lines
        """),
        {"job": job_id},
    ).one()
    return LineCounts(**row._mapping)


def first_errors(connection: Connection, job_id: str) -> list[dict[str, Any]]:
    """Returns the errors of a job's first invalid lines in the form of its field `errors`."""
    rows = connection.execute(
        text("""
            select line, error from bulk_lines where job_id = :job and error is not null order by line limit :most
        """),
        {"job": job_id, "most": SHOWN_ERRORS},
    )
    return [{name: row.error.get(name) for name in ("code", "message", "param")} | {"line": row.line} for row in rows]


def pause_s(took_s: float, lines: int) -> float:
    """Returns the seconds until a job's lines are counted again, after a count that took `took_s`."""
    return max(1.0, min(took_s / COUNTING_SHARE, LONGEST_PAUSE_S + PAUSE_OF_A_LINE_S * lines))


def write_counts(connection: Connection, job: WatchedJob, counts: LineCounts, took_s: float) -> WatchedJob:
    """Stores counts and the time of the next count; makes the output and error file once they have lines."""
    output_file_id, error_file_id = job.output_file_id, job.error_file_id
    if output_file_id is None and counts.completed:
        output_file_id = _add_results_file(connection, job, "output")
    if error_file_id is None and counts.failed + counts.unserved:
        error_file_id = _add_results_file(connection, job, "error")
    connection.execute(
        text("""
            update bulk_jobs set completed = :completed, failed = :failed, output_file_id = :output_file_id,
                done_tokens = :done_tokens, usage = cast(:usage as jsonb),
                left_work = coalesce(cast(:left_work as jsonb), left_work), error_file_id = :error_file_id,
                look_at = clock_timestamp() + make_interval(secs => :pause_s) where id = :id
        """),
        {
            "id": job.id,
            "completed": counts.completed,
            "failed": counts.failed,
            "done_tokens": counts.done_tokens,
            "usage": json.dumps(counts.usage),
            "left_work": json.dumps(counts.left_work(job.lines)) if counts.requests else None,
            "output_file_id": output_file_id,
            "error_file_id": error_file_id,
            "pause_s": pause_s(took_s, job.lines),
        },
    )
    return replace(job, output_file_id=output_file_id, error_file_id=error_file_id)


def _add_results_file(connection: Connection, job: WatchedJob, purpose: str) -> str:
    file_id = new_file_id()
    connection.execute(
        text("""
            insert into files (id, tenant, purpose, filename, job_id, bytes)
            values (:id, :tenant, :purpose, :filename, :job, 0)
        """),
        {
            "id": file_id,
            "tenant": job.tenant,
            "purpose": purpose,
            "filename": f"{job.id}_{purpose}.jsonl",
            "job": job.id,
        },
    )
    return file_id


def set_status(
    connection: Connection, job_id: str, before: BulkStatus, status: BulkStatus, errors: Sequence[Any] | None = None
) -> bool:
    """Sets a job's status, the time of the status, and webhook events if it is final; False if it was not `before`."""
    instant = f"{status.value}_at"
    changed = connection.execute(
        text(f"""
            with job as (
                update bulk_jobs set status = :status, {instant} = clock_timestamp(), errors = cast(:errors as jsonb),
                    paused_at = null, look_at = clock_timestamp()
                where id = :id and status = :before returning id, tenant, status
            ), events as (
                insert into webhook_deliveries (endpoint_id, event_id, type, object_id)
                select e.id, 'evt_' || substr(job.id, 7), 'batch.' || job.status, job.id
                from job join webhook_endpoints e on e.tenant = job.tenant and 'batch.' || job.status = any(e.events)
            )
            select id from job
        """),  # noqa: S608  # the name of a status
        {
            "id": job_id,
            "before": before.value,
            "status": status.value,
            "errors": None if errors is None else json.dumps(errors),
        },
    )
    return changed.one_or_none() is not None


def measured_line(connection: Connection, file_id: str) -> int:
    """Returns the number of the last line whose size is counted in the size of a file of results."""
    return int(connection.execute(text("select last_line from files where id = :id"), {"id": file_id}).scalar_one())


def add_size(connection: Connection, file_id: str, after: int, last_line: int, size_bytes: int) -> None:
    """Adds the size of the lines after `after`, up to `last_line`, unless another process has added it."""
    connection.execute(
        text("""
            update files set bytes = bytes + :bytes, last_line = :last_line where id = :id and last_line = :after
        """),
        {"id": file_id, "bytes": size_bytes, "last_line": last_line, "after": after},
    )


def check_now(connection: Connection, job_id: str) -> None:
    """Makes the next count of a job due now, behind the jobs that are due already."""
    connection.execute(text("update bulk_jobs set look_at = clock_timestamp() where id = :id"), {"id": job_id})


def let_results_expire(connection: Connection, job_id: str) -> None:
    """Stores when the results of a job expire; to be called when the job ends."""
    connection.execute(
        text("""
            update files set expires_at = clock_timestamp() + make_interval(secs => output_expires_s)
            from bulk_jobs j where j.id = :id and files.id = any(array[j.output_file_id, j.error_file_id])
        """),
        {"id": job_id},
    )
