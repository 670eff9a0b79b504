"""Jobs of all tenants for operators: lists and finds them, reads the queue, cancels jobs and submits them again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from models import client_requests, notifications
from models.client_requests import RequestView, read_views, select_views
from models.connections.sql import text
from models.tables import PREFERRED_UNFINISHED, RequestStatus, StoredRequest

NEWEST = 2000  # the slowest jobs are looked for among this many newest answers, to bound the query; not tuned
# A batch's requests are looked for among at most this many requests that ended while the batch ran. An index of ended
# requests by batch would cost time at every answer. Not tuned.
MOST_ENDED = 20_000
MOST_MATES = 64


def jobs_with_prefix(session: Session, prefix: str, limit: int) -> Sequence[RequestView]:
    """Returns jobs whose id begins with `prefix`, in the order of their ids."""
    found = select_views().where(StoredRequest.id >= prefix, StoredRequest.id <= prefix + "g")
    return list(read_views(session, found.order_by(StoredRequest.id).limit(limit)))


def slowest_jobs(session: Session, limit: int, tenant: str | None, application: str | None) -> Sequence[RequestView]:
    """Returns the jobs with the longest response times among the NEWEST answers, the longest time first."""
    ids = session.scalars(
        text("""
            select id from (
                select id, tenant, application, finished_at - arrived_at as response from requests
                where status in ('completed', 'incomplete') order by finished_at desc limit :newest
            ) as newest
            where (cast(:tenant as text) is null or tenant = :tenant)
                and (cast(:application as text) is null or application = :application)
            order by response desc, id limit :limit
        """),
        {"newest": NEWEST, "tenant": tenant, "application": application, "limit": limit},
    ).all()
    views = {view.request.id: view for view in read_views(session, select_views().where(StoredRequest.id.in_(ids)))}
    return [views[name] for name in ids if name in views]


def batch_mates(session: Session, view: RequestView) -> list[Row[Any]]:
    """Returns id, application, status and tokens of up to MOST_MATES other requests of a job's latest batch."""
    if view.batch is None or view.batch.started_at is None:
        return []
    values = {"batch": view.batch.id, "id": view.request.id, "most": MOST_MATES}
    running = text("""
        select id, application, status, output_tokens from requests
        where batch_id = :batch and status = 'in_progress' and id <> :id order by id limit :most
    """)
    rows = list(session.execute(running, values))
    until = view.batch.finished_at or view.request.finished_at
    if until is not None:
        ended = text("""
            select id, application, status, output_tokens from (
                select id, application, status, output_tokens, batch_id from requests
                where status in ('completed', 'incomplete')
                    and finished_at >= :since and finished_at <= :until
                order by finished_at desc limit :most_ended
            ) as ended where batch_id = :batch and id <> :id order by id limit :most
        """)
        window = {"since": view.batch.started_at, "until": until, "most_ended": MOST_ENDED}
        rows += session.execute(ended, values | window)
    return rows[:MOST_MATES]


MOST_AT_ONCE = 10_000  # one action changes at most this many jobs; an operator repeats it for more. Not tuned.
# One statement changes this many jobs: with 500 it ends well within the web's 2 s a statement, and locks rows briefly.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs match: their statuses, tenant and application; None stands for any tenant or application."""

    statuses: tuple[RequestStatus, ...]
    tenant: str | None = None
    application: str | None = None


def matching_jobs(session: Session, which: JobFilter) -> list[str]:
    """Returns the ids of up to MOST_AT_ONCE + 1 jobs that match, the oldest of each status first."""
    query, values = _matching(which)
    return [row.id for row in session.execute(text(query), values)]


def count_jobs(session: Session, which: JobFilter) -> int:
    """Returns the number of jobs that match; MOST_AT_ONCE + 1 stands for any larger number."""
    query, values = _matching(which)
    number: int = session.execute(text(f"select count(*) from ({query}) as found"), values).scalar_one()  # noqa: S608
    return number


def _matching(which: JobFilter) -> tuple[str, dict[str, Any]]:
    columns = [column for column in ("tenant", "application") if getattr(which, column) is not None]
    conditions = "".join(f" and {column} = :{column}" for column in columns)
    query = f"""
        select job.id from unnest(cast(:statuses as text[])) as state, lateral (
            select id from requests where status = state{conditions} order by arrived_at, id limit :most
        ) as job limit :most
    """  # noqa: S608  # names of columns
    values = {"statuses": [status.value for status in which.statuses], "most": MOST_AT_ONCE + 1}
    return query, values | {column: getattr(which, column) for column in columns}


def cancel_jobs(session: Session, ids: Sequence[str]) -> list[str]:
    """Cancels queued jobs and marks running ones to be stopped; returns the ids of both. Leaves final jobs alone."""
    return [one for chunk in _chunks(ids) for one in client_requests.cancel(session, None, chunk)]


def cancel_waiting(session: Session, model: str) -> list[str]:
    """Cancels every queued request of a model; returns their ids."""
    queued = text("select id from requests where status = 'queued' and model = :model order by id")
    return cancel_jobs(session, session.scalars(queued, {"model": model}).all())


def move_waiting(session: Session, model: str, to: str) -> int:
    """Lets another model or adapter serve a model's queued requests from their beginning; returns how many.

    The requests' lengths are predicted again, and twins are computed by themselves. Requests for vectors and scores
    stay with their model.
    """
    moved = text("""
        update requests set model = :to,
            base = (select model from workers where facts->'adapters' ? :to and model <> :to limit 1),
            planner_epoch = 0, predicted_tokens = null, predicted_upper_tokens = null,
            predictor_version = null, generated_ids = '{}', logprobs = null, sealed_group = null, outgrew_tokens = 0,
            twin_of = null, twin_sha256 = null
        where status = 'queued' and model = :model and kind = 'answer' returning id
    """)
    count = len(session.execute(moved, {"model": model, "to": to}).all())
    notifications.notify_submitted(session.connection())
    return count


def served_models(session: Session) -> Sequence[str]:
    """Returns the models and adapters of the workers whose last heartbeat is less than ten seconds old."""
    alive = text("""select distinct served from workers,
            jsonb_array_elements_text(facts->'adapters' || to_jsonb(model)) as served
        where stopped_at is null and heartbeat_at > statement_timestamp() - interval '10 s' order by served""")
    return session.scalars(alive).all()


def submit_again(session: Session, ids: Sequence[str], most_preferred: int) -> list[str]:
    """Submits the failed and cancelled jobs among these again, if their text is kept; returns the new ids.

    A job of the tier `priority` gets `default` beyond its tenant's quota (`most_preferred` if the tenant has none).
    """
    made: list[str] = []
    for chunk in _chunks(ids):
        rows = session.execute(
            text(f"""
                insert into requests (id, tenant, model, base, application, instructions, input, body, prompt_tokens,
                    input_tokens, limit_tokens, kind, tier, priority, needs)
                select 'resp_' || replace(cast(gen_random_uuid() as text), '-', ''), tenant, model, base,
                    application, instructions, input, body - 'repeats_prompt', prompt_tokens, input_tokens,
                    limit_tokens, kind,
                    case when tier <> 'priority' then tier
                        when row_number() over (partition by tenant, tier order by arrived_at, id)
                            > coalesce((select priority_requests from tenants where name = ended.tenant), :most)
                            - (select count(*) from requests where tenant = ended.tenant and {PREFERRED_UNFINISHED})
                        then 'default' else tier end,
                    priority, needs
                from requests as ended where id = any(cast(:ids as text[])) and status in ('failed', 'cancelled')
                    and (input <> '' or instructions <> '')
                returning id
            """),  # noqa: S608  # a constant
            {"ids": chunk, "most": most_preferred},
        )
        made += [row.id for row in rows]
        session.commit()
    return made


def _chunks(ids: Sequence[str]) -> list[list[str]]:
    return [list(ids[first : first + CHUNK]) for first in range(0, len(ids), CHUNK)]


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued request; `length` counts the tokens of its prompt and those that earlier slices generated."""

    id: str
    tenant: str
    application: str
    model: str
    length: int
    predicted_tokens: int
    waited_s: float


def waiting_requests(session: Session, ids: Collection[str]) -> dict[str, QueuedJob]:
    """Returns the requests among these that are still queued, by id."""
    rows = session.execute(
        text("""
            select id, tenant, application, model, prompt_tokens + cardinality(generated_ids) as length,
                greatest(1, least(coalesce(predicted_tokens, limit_tokens), limit_tokens) - cardinality(generated_ids))
                    as predicted_tokens,
                extract(epoch from clock_timestamp() - arrived_at)::float8 as waited_s
            from requests where id = any(cast(:ids as text[])) and status in ('queued')
        """),
        {"ids": list(ids)},
    )
    return {row.id: QueuedJob(**row._mapping) for row in rows}
