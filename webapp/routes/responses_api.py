"""/v1/responses: submit, poll, list, cancel, delete. Reads and writes the database alone, never the broker."""

from dataclasses import asdict
from functools import partial

from apiflask import APIBlueprint
from flask import Response as FlaskResponse
from flask import request

from models import client_requests, notifications
from models.client_requests import RequestView
from models.planning.queue_position import place_in_queue
from models.planning.waiting_reasons import explain, waits_for
from protocol.responses.response_objects import (
    Deleted,
    Response,
    ResponseList,
    WaitingReasons,
    response_of,
    retry_after_s,
)
from protocol.responses.response_schemas import CreateResponse, ListQuery, RetrieveQuery
from protocol.responses.response_submission import response_submission
from protocol.streaming.response_events import response_events
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant
from webapp.requests.answer_stream import event_stream, find_and_stream, shown_progress, submit_and_stream_all
from webapp.requests.awaited_answers import submit_all_and_wait
from webapp.requests.request_storing import submit
from webapp.requests.stored_conversations import earlier_turns, referenced_items
from webapp.requests.stored_requests import (
    RESPONSE_ID,
    cancel_request,
    find_and_wait,
    find_request,
    forget_unstored,
    require_response_id,
    response_not_found,
)
from webapp.routes.list_pages import json_answer, read_page
from webapp.waiting.patience import connection_of, patience_of, preferred_wait_s

api = APIBlueprint("responses", __name__, url_prefix="/v1/responses", tag="Responses")


@api.post("")
@api.input(CreateResponse)
@api.output(Response)
@api.doc(summary="Submit a request", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 503])
def create(json_data: CreateResponse) -> FlaskResponse:
    """Store a request; it is in the database before the answer leaves.

    With `background: true` the answer comes at once, with an id to poll. Otherwise it comes when the response is final,
    or, unfinished, once the service's longest wait is over. With `stream: true` it comes as it is generated.
    """
    context, tenant = current_context(), current_tenant()
    earlier = partial(earlier_turns, context, tenant)
    key = request.headers.get("Idempotency-Key")
    referenced = partial(referenced_items, context, tenant)
    submission = response_submission(json_data, tenant, context.prompt_limits, key, earlier, referenced)
    if submission.body.stream:
        asked = json_data.stream_options.include_progress if json_data.stream_options else None
        progress = shown_progress(context, json_data.model, asked)
        (stream,) = submit_and_stream_all(context, [submission], connection_of(request))
        return event_stream([stream], lambda: response_events(stream, answer_of(stream.view)[0], progress))
    if submission.body.background:
        return json_answer(*answer_of(submit(context, submission)))
    (view,) = submit_all_and_wait(context, [submission], patience_of(request, context.wait_s))
    answer = json_answer(*answer_of(view))
    if view.request.status.final:
        forget_unstored(context, [view])
    return answer


@api.get("")
@api.input(ListQuery, location="query")
@api.output(ResponseList)
@api.doc(summary="List responses", security="ApiKey", responses=[400, 401, 403, 429, 503])
def list_(query_data: ListQuery) -> ResponseList:
    """Lists responses, newest first unless asked otherwise; `after` takes the last id of the page before.

    A page of long texts and many tools ends early, with `has_more`.
    """
    only = {"statuses": [query_data.status] if query_data.status else [], "application": query_data.application}
    asked = {"limit": query_data.limit, "oldest_first": query_data.order == "asc", "texts": True}
    page = read_page("response", RESPONSE_ID, client_requests.page, query_data.after, **only, **asked)
    return ResponseList.with_entries([answer_of(view)[0] for view in page.entries], has_more=page.more)


@api.get("/<id>")
@api.input(RetrieveQuery, location="query")
@api.output(Response)
@api.doc(summary="Retrieve a response", security="ApiKey", responses=[400, 401, 403, 404, 429, 503])
def retrieve(id: str, query_data: RetrieveQuery) -> FlaskResponse:
    """Returns status, prediction, position and estimated completion; Retry-After says when it pays to ask again.

    `Prefer: wait=N` waits up to N seconds for its end, at most as long as the service allows.
    """
    context, tenant = current_context(), current_tenant()
    if query_data.stream:
        stream, after = find_and_stream(context, tenant, id, connection_of(request)), query_data.starting_after
        asked = query_data.include_progress and not stream.view.request.status.final  # its model may be gone by then
        progress = shown_progress(context, stream.view.request.model, asked)
        return event_stream([stream], lambda: response_events(stream, answer_of(stream.view)[0], progress, after))
    wait_s = preferred_wait_s(request)
    if not wait_s:
        return json_answer(*answer_of(find_request(context, tenant, id)))
    patience = patience_of(request, context.wait_s)
    answer, headers = answer_of(find_and_wait(context, tenant, id, patience))
    return json_answer(answer, headers | {"Preference-Applied": f"wait={wait_s}"})


@api.get("/<id>/why")
@api.output(WaitingReasons)
@api.doc(summary="Why is it not running?", security="ApiKey", responses=[401, 403, 404, 429, 503])
def why(id: str) -> WaitingReasons:
    """Returns up to eight questions with their answers; the last one has what a waiting response waits for."""
    view = find_request(current_context(), current_tenant(), id)
    snapshot = current_context().queue_snapshot.get()
    answers = explain(view, snapshot, place_in_queue(view, snapshot))
    return WaitingReasons(id=id, status=view.request.status, answers=[asdict(answer) for answer in answers])


@api.post("/<id>/cancel")
@api.output(Response)
@api.doc(summary="Cancel a response", security="ApiKey", responses=[401, 403, 404, 429, 503])
def cancel(id: str) -> FlaskResponse:
    """Cancels a queued response at once, a running one once its worker hears of it; a final one stays as it is."""
    require_response_id(id)
    cancel_request(current_context(), current_tenant(), id)
    return json_answer(*answer_of(find_request(current_context(), current_tenant(), id)))


@api.delete("/<id>")
@api.output(Deleted)
@api.doc(summary="Delete a response", security="ApiKey", responses=[401, 403, 404, 409, 429, 503])
def delete(id: str) -> Deleted:
    """Deletes a response: a waiting one leaves the queue, a running one must be cancelled first."""
    require_response_id(id)
    with current_context().sessions() as session:
        if not client_requests.remove(session, current_tenant(), id):
            raise response_not_found(id)
        notifications.notify_ended(session.connection(), [id])
    return Deleted(id=id)


def answer_of(view: RequestView) -> tuple[Response, dict[str, str]]:
    """Returns the Response of a stored request, and the header that says when to poll again."""
    snapshot = None if view.request.status.final else current_context().queue_snapshot.get()
    queue_place = place_in_queue(view, snapshot)
    wait_s = retry_after_s(view, queue_place)
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    return response_of(view, queue_place, waits_for(view, snapshot, queue_place)), headers
