"""Jobs as operators look for them, beside the lists by arrival (`models.client_requests.page`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.client_requests import RequestView, read_views, select_views
from models.sql import text
from models.tables import StoredRequest

NEWEST = 2000  # answers among which the slowest are looked for; it bounds the query. Not tuned.
# Rows that ended while a batch ran, among which its requests are looked for: there is no index of ended requests by
# batch, as it would cost every answer. Not tuned.
MOST_ENDED = 20_000
MOST_MATES = 64


def begins_with(session: Session, prefix: str, limit: int) -> Sequence[RequestView]:
    """Jobs whose id begins so, by id."""
    found = select_views().where(StoredRequest.id >= prefix, StoredRequest.id <= prefix + "g")
    return list(read_views(session, found.order_by(StoredRequest.id).limit(limit)))


def slowest(session: Session, limit: int, tenant: str | None, application: str | None) -> Sequence[RequestView]:
    """Of the NEWEST answers those with the longest response times, the longest first."""
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


@dataclass(frozen=True, slots=True)
class BatchMate:
    """A request that was served in the same batch."""

    id: str
    application: str
    status: str
    output_tokens: int | None


def batch_mates(session: Session, view: RequestView) -> list[BatchMate]:
    """The other requests of a job's batch, at most MOST_MATES; of an ended batch those that ended while it ran."""
    if view.batch is None or view.batch.started_at is None:
        return []
    columns = (StoredRequest.id, StoredRequest.application, StoredRequest.status, StoredRequest.output_tokens)
    running = select(*columns).where(
        StoredRequest.batch_id == view.batch.id, text("status = 'in_progress'"), StoredRequest.id != view.request.id
    )
    rows = list(session.execute(running.order_by(StoredRequest.id).limit(MOST_MATES)))
    until: datetime | None = view.batch.finished_at or view.request.finished_at
    if until is not None:
        ended = text("""
            select id, application, status, output_tokens from (
                select id, application, status, output_tokens, batch_id from requests
                where status in ('completed', 'incomplete')
                    and finished_at >= :since and finished_at <= :until
                order by finished_at desc limit :most_ended
            ) as ended where batch_id = :batch and id <> :id order by id limit :most
        """)
        values = {
            "since": view.batch.started_at,
            "until": until,
            "batch": view.batch.id,
            "id": view.request.id,
            "most_ended": MOST_ENDED,
            "most": MOST_MATES,
        }
        rows += list(session.execute(ended, values))
    return [
        BatchMate(name, application, str(status), tokens) for name, application, status, tokens in rows[:MOST_MATES]
    ]
