"""/v1/responses: submit, poll, list, cancel, delete. Reads and writes the database alone, never the broker."""

from apiflask import APIBlueprint
from flask import request

from models import client_requests
from models.client_requests import RequestView
from models.queue_position import place_in_queue
from webapp.app_context import current_context
from webapp.auth import current_tenant
from webapp.client_errors import InvalidRequest
from webapp.client_prompt import ClientPrompt, Turn, prompt_of_turns
from webapp.output_options import stored_format
from webapp.response_objects import Deleted, Response, ResponseList, response_of, retry_after_s
from webapp.response_schemas import CreateResponse, ListQuery
from webapp.submission import (
    RESPONSE_ID,
    Submission,
    find_request,
    require_response_id,
    response_not_found,
    submit,
    submit_and_wait,
)

api = APIBlueprint("responses", __name__, url_prefix="/v1/responses", tag="Responses")


@api.post("")
@api.input(CreateResponse)
@api.output(Response)
@api.doc(summary="Submit a request", security="ApiKey", responses=[400, 401, 404, 413, 422, 429, 503])
def create(json_data: CreateResponse) -> tuple[Response, dict[str, str]]:
    """Store a request; it is in the database before the answer leaves.

    With `background: true` the answer comes at once, with an id to poll. Otherwise it comes when the response is final,
    or after the service's bound in whatever state it then has.
    """
    submission = submission_of(json_data)
    store = submit if submission.background else submit_and_wait
    return answer_of(store(current_context(), submission))


@api.get("")
@api.input(ListQuery, location="query")
@api.output(ResponseList)
@api.doc(summary="List responses", security="ApiKey", responses=[400, 401, 429, 503])
def list_(query_data: ListQuery) -> ResponseList:
    """Newest first unless asked otherwise; `after` takes the last id of the page before."""
    unknown_cursor = InvalidRequest(f"No response '{(query_data.after or '')[:80]}' to list after.", param="after")
    if query_data.after is not None and not RESPONSE_ID.fullmatch(query_data.after):
        raise unknown_cursor
    with current_context().sessions() as session:
        page = client_requests.page(
            session,
            current_tenant(),
            statuses=[query_data.status] if query_data.status else [],
            application=query_data.application,
            after=query_data.after,
            limit=query_data.limit,
            oldest_first=query_data.order == "asc",
        )
    if page is None:
        raise unknown_cursor
    data = [answer_of(view)[0] for view in page.views]
    return ResponseList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=page.more,
    )


@api.get("/<id>")
@api.output(Response)
@api.doc(summary="Retrieve a response", security="ApiKey", responses=[401, 404, 429, 503])
def retrieve(id: str) -> tuple[Response, dict[str, str]]:
    """Status, prediction, position and estimated completion; Retry-After says when it pays to ask again."""
    return answer_of(find_request(current_context(), current_tenant(), id))


@api.post("/<id>/cancel")
@api.output(Response)
@api.doc(summary="Cancel a response", security="ApiKey", responses=[401, 404, 429, 503])
def cancel(id: str) -> tuple[Response, dict[str, str]]:
    """What waits is cancelled at once, what runs as soon as its worker hears of it; a final one stays as it is."""
    require_response_id(id)
    with current_context().sessions() as session:
        client_requests.cancel(session, current_tenant(), id)
    return answer_of(find_request(current_context(), current_tenant(), id))


@api.delete("/<id>")
@api.output(Deleted)
@api.doc(summary="Delete a response", security="ApiKey", responses=[401, 404, 409, 429, 503])
def delete(id: str) -> Deleted:
    """Waiting ones are taken out of the queue; running ones must be cancelled first."""
    require_response_id(id)
    with current_context().sessions() as session:
        if not client_requests.remove(session, current_tenant(), id):
            raise response_not_found(id)
    return Deleted(id=id)


def submission_of(body: CreateResponse) -> Submission:
    """What a body asks for, in the name of the current request's tenant."""
    if isinstance(body.input, str):
        prompt = ClientPrompt(body.instructions or "", body.input)
    else:
        prompt = prompt_of_turns(body.instructions, [Turn(message.role, message.text) for message in body.input])
    return Submission(
        tenant=current_tenant(),
        idempotency_key=request.headers.get("Idempotency-Key"),
        model=body.model,
        prompt=prompt,
        limit_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        background=bool(body.background),
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.magnus.top_k,
        seed=body.magnus.seed,
        stop=body.magnus.stop,
        priority=body.magnus.priority,
        deadline_s=body.magnus.deadline_s,
        body=body,
        format=stored_format(body.text.format) if body.text else None,
        format_param="text.format",
        top_logprobs=body.asked_logprobs,
        logprobs_param="include" if body.include else "top_logprobs",
    )


def answer_of(view: RequestView) -> tuple[Response, dict[str, str]]:
    """The Response of a stored request, and the header that says when to poll again."""
    final = view.request.status.final
    queue_place = place_in_queue(view, None if final else current_context().queue_snapshot.get())
    wait_s = retry_after_s(view, queue_place)
    return response_of(view, queue_place), {} if wait_s is None else {"Retry-After": str(wait_s)}
