"""One call with several answers: each is a request of its own, and the call waits for all of them."""

from collections.abc import Sequence
from functools import partial

from flask import request

from models.client_requests import RequestView
from protocol.client_errors import NotInTime
from protocol.requests.several_answers import accepted_requests, require_answer
from protocol.requests.submission import Submission
from webapp.context.app_context import AppContext, current_context
from webapp.requests.request_storing import new_request, store
from webapp.requests.stored_requests import cancel_request, find_request, forget_unstored, wait_for_ends
from webapp.waiting.patience import Patience, patience_of

PART = "\x1f"  # clients' keys cannot have this character, so a part's key never equals another key


def store_all(context: AppContext, submissions: Sequence[Submission]) -> list[RequestView]:
    """Stores requests in this order; stores none if one of them is refused.

    If storing one fails, cancels the ones before it, unless they have an Idempotency-Key, by which a retry finds them.
    """
    new = accepted_requests(submissions, partial(new_request, context))
    stored: list[RequestView] = []
    try:
        for number, (submission, row) in enumerate(zip(submissions, new, strict=True)):
            stored.append(store(context, submission, row, f"{PART}{number}" if number else ""))
    except BaseException:
        if submissions[0].idempotency_key is None:
            for view in stored:
                cancel_request(context, view.request.tenant, view.request.id)
        raise
    return stored


def submit_all_and_wait(
    context: AppContext, submissions: Sequence[Submission], patience: Patience
) -> list[RequestView]:
    """Stores requests and waits until all are final or the client's wait is over; raises Busy before any is stored.

    Cancels them if their client disconnects meanwhile, unless an Idempotency-Key says that the client may come back.
    """
    tenant = submissions[0].tenant
    with context.waiting_calls.reserve_slot(tenant):
        stored = store_all(context, submissions)
        calls = wait_for_ends(context, stored, patience)
    if any(call.over == "left" for call in calls) and submissions[0].idempotency_key is None:
        for call in calls:
            cancel_request(context, tenant, call.id)
    return [call.view or find_request(context, tenant, call.id) for call in calls]


def wait_for_answers(submissions: Sequence[Submission]) -> list[RequestView]:
    """Returns the answered requests; raises NotInTime, NotAnswered, or InvalidRequest if one was cancelled."""
    context, first = current_context(), submissions[0]
    patience = patience_of(request, context.wait_s)
    views = submit_all_and_wait(context, submissions, patience)
    late = [view.request.id for view in views if not view.request.status.final]
    if late and first.idempotency_key is not None:
        raise NotInTime(f"No answer within {patience.wait_s:g} s. The same Idempotency-Key goes on waiting for it.")
    if late:
        for late_id in late:
            cancel_request(context, first.tenant, late_id)
        raise NotInTime(
            f"No answer within {patience.wait_s:g} s; {late[0]} was cancelled. "
            "For long work send POST /v1/responses with background=true and poll, or an Idempotency-Key and try again."
        )
    for view in views:
        require_answer(view)
    forget_unstored(context, views)
    return views
