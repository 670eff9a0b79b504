"""Requests that have ended: what waiting calls, streams and the overview ask."""

from collections.abc import Iterable, Sequence

from sqlalchemy import ARRAY, Text, any_, literal, select, union_all
from sqlalchemy.orm import Session

from models.client_requests import UNFINISHED, RequestView, read_views, select_views, select_whole_views
from models.sql import text
from models.tables import ANSWERED, UNANSWERED, StoredRequest


def last_ended(session: Session, limit: int) -> Sequence[RequestView]:
    """The requests of all tenants that ended last, newest first, whatever their final state."""
    newest = (  # of each of the two partial indexes
        select(StoredRequest.id).where(text(ended)).order_by(StoredRequest.finished_at.desc()).limit(limit).subquery()
        for ended in (ANSWERED, UNANSWERED)
    )
    ids = union_all(*(select(some.c.id) for some in newest))
    ended = select_views().where(StoredRequest.id.in_(ids)).order_by(StoredRequest.finished_at.desc()).limit(limit)
    return list(read_views(session, ended))


def finished(session: Session, ids: Iterable[str]) -> set[str]:
    """Which of these requests are final or deleted, so that nobody needs to wait for them any longer."""
    ids = list(ids)
    theirs = StoredRequest.id == any_(literal(ids, ARRAY(Text)))  # one parameter: a thousand take a waiting call's time
    unfinished = session.scalars(select(StoredRequest.id).where(theirs, StoredRequest.status.in_(UNFINISHED)))
    return set(ids) - set(unfinished)


def ended(session: Session, ids: Iterable[str]) -> dict[str, RequestView | None]:
    """Those of these requests that are final, and None for each that was deleted."""
    over = finished(session, ids)
    views = read_views(session, select_whole_views().where(StoredRequest.id.in_(over))) if over else ()
    found = {view.request.id: view for view in views}
    return {request_id: found.get(request_id) for request_id in over}
