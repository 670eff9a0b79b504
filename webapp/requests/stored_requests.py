"""Finds the stored requests of a tenant, waits for their ends, cancels them, and deletes texts with `store: false`."""

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models import client_requests
from models.client_requests import RequestView
from models.upkeep import retention
from protocol.client_errors import NotFound
from request_body import readable_body
from webapp.context.app_context import AppContext
from webapp.waiting.patience import Patience
from webapp.waiting.waiting_calls import WaitingCall

RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")  # as `models/request_ids.py` makes them
KINDS = {"msg_": "Message", "chatcmpl-": "Chat completion"}  # by the beginnings of their ids

log = structlog.get_logger()


def find_request(context: AppContext, tenant: str, id: str, prefix: str = "resp_") -> RequestView:
    """Returns a request of this tenant; raises NotFound. Chats and messages have ids with another `prefix`."""
    stored_id = id.replace(prefix, "resp_", 1)
    if RESPONSE_ID.fullmatch(stored_id):
        with context.sessions() as session:
            view = client_requests.fetch(session, tenant, stored_id)
        if view is not None:
            return view
    raise response_not_found(id)


def require_response_id(id: str) -> None:
    """Raises NotFound for a malformed id, so that it never reaches the database."""
    if not RESPONSE_ID.fullmatch(id):
        raise response_not_found(id)


def response_not_found(id: str) -> NotFound:
    """Returns the error for an id that this tenant does not have."""
    kind = next((kind for prefix, kind in KINDS.items() if id.startswith(prefix)), "Response")
    return NotFound(f"{kind} with id '{id[:80]}' not found.", param="id", code="response_not_found")


def find_and_wait(context: AppContext, tenant: str, id: str, patience: Patience) -> RequestView:
    """Returns this tenant's request once it is final, or as it is when the wait is over; raises NotFound, Busy."""
    with context.waiting_calls.reserve_slot(tenant):
        (call,) = wait_for_ends(context, [find_request(context, tenant, id)], patience)
    return call.view or find_request(context, tenant, id)


def wait_for_ends(context: AppContext, stored: Sequence[RequestView], patience: Patience) -> list[WaitingCall]:
    """Waits until all requests are final or the wait is over; returns each one's view and why its wait ended."""
    calls: list[WaitingCall] = []
    with ExitStack() as begun:
        for view in stored:
            call = context.waiting_calls.begin(view.request.id)
            begun.callback(context.waiting_calls.end, call)
            calls.append(call)
            if view.request.status.final:
                call.finish(view)

        def leave() -> None:
            for call in calls:
                call.leave()

        if patience.connection is not None:
            begun.callback(patience.connection.on_close(leave))
        until = time.monotonic() + patience.wait_s
        if any(call.over is None for call in calls):
            with patience.turn.given_up():
                for call in calls:
                    call.wait_until_over(until - time.monotonic())
    return calls


def cancel_request(context: AppContext, tenant: str, id: str) -> None:
    """Cancels a request: a queued one at once, a running one by its worker; calls that wait for it are notified."""
    with context.sessions() as session:
        client_requests.cancel(session, tenant, [id])


def forget_unstored(context: AppContext, views: Iterable[RequestView]) -> None:
    """Deletes the texts of these final requests if they have `store: false`.

    Upkeep deletes them later if the database is unreachable, or if a request has an Idempotency-Key, because its client
    may ask again for an answer that did not arrive.
    """
    stored = (view.request for view in views)
    ids = [one.id for one in stored if one.idempotency_key is None and not readable_body(one.body).store]
    if not ids:
        return
    try:
        with context.sessions() as session:
            retention.delete_unstored_texts(session.connection(), ids)
            session.commit()
    except SQLAlchemyError as error:
        log.warning("not forgotten yet", requests=ids, error=error)
