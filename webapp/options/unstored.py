"""Requests with `store: false`: once such a request was answered, its prompt and its answer leave the database."""

from collections.abc import Iterable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.client_requests import RequestView
from models.upkeep import unstored_requests
from webapp.app_context import AppContext

log = structlog.get_logger()


def forget_unstored(context: AppContext, views: Iterable[RequestView]) -> None:
    """Delete the texts of those of these final requests that are not to be stored.

    If the database is away, upkeep does it later: the client has its answer.
    """
    ids = [view.request.id for view in views if view.request.body.get("store") is False]
    if not ids:
        return
    try:
        with context.sessions() as session:
            unstored_requests.forget(session.connection(), ids)
            session.commit()
    except SQLAlchemyError as error:
        log.warning("not forgotten yet", requests=ids, error=error)
