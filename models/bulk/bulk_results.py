"""The ended lines of a bulk job with their requests, page by page: what its files of results are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from models.bulk.bulk_tables import FilePurpose
from models.client_requests import RequestView, select_whole_views
from models.sql import text
from models.tables import StoredRequest

ANSWERED_LINES = "r.status in ('completed', 'incomplete')"
OTHER_ENDED_LINES = "(r.id is null or r.status in ('failed', 'cancelled'))"


@dataclass(frozen=True, slots=True)
class EndedLine:
    """A line that has ended; without a view its request was deleted, or never was one."""

    line: int
    custom_id: str | None
    request_id: str | None
    error: dict[str, Any] | None
    view: RequestView | None


def ended_lines(session: Session, job_id: str, purpose: FilePurpose, after: int, limit: int) -> Sequence[EndedLine]:
    """Up to `limit` lines behind the line `after` that belong to the output, or to the errors."""
    condition = ANSWERED_LINES if purpose is FilePurpose.output else OTHER_ENDED_LINES
    rows = session.execute(
        text(f"""
            select l.line, l.custom_id, l.request_id, l.error
            from bulk_lines l
            left join lateral (select id, status from requests where id = l.request_id offset 0) r on true
            where l.job_id = :job and l.line > :after and {condition} order by l.line limit :most
        """),  # noqa: S608  # one of two constants
        {"job": job_id, "after": after, "most": limit},
    ).all()
    ids = [row.request_id for row in rows if row.request_id]
    found = session.execute(select_whole_views().where(StoredRequest.id.in_(ids))) if ids else ()
    views = {
        request.id: RequestView(request, batch, tokens, now, logprobs)
        for request, batch, tokens, now, logprobs in found
    }
    return [EndedLine(row.line, row.custom_id, row.request_id, row.error, views.get(row.request_id)) for row in rows]
