"""/v1/responses: submit, poll, list, cancel, delete. Parses, stores, answers; never touches the broker."""

from apiflask import APIBlueprint

from models import client_requests
from models.client_requests import RequestView
from models.queue_position import place_in_queue
from models.tables import RequestStatus
from webapp.app_context import context
from webapp.auth import tenant
from webapp.client_errors import InvalidRequest
from webapp.prompt_limits import ClientPrompt, Turn, prompt_of
from webapp.response_objects import Deleted, Response, ResponseList, response_of, retry_after_s
from webapp.response_schemas import CreateResponse, ListQuery
from webapp.submission import RESPONSE_ID, Submission, absent, find, known, submit, submit_and_wait

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
    wanted = asked(json_data)
    return shown(submit(wanted) if wanted.background else submit_and_wait(wanted))


@api.get("")
@api.input(ListQuery, location="query")
@api.output(ResponseList)
@api.doc(summary="List responses", security="ApiKey", responses=[400, 401, 429, 503])
def list_(query_data: ListQuery) -> ResponseList:
    """Newest first unless asked otherwise; `after` takes the last id of the page before."""
    unknown_cursor = InvalidRequest(f"No response '{(query_data.after or '')[:80]}' to list after.", param="after")
    if query_data.after is not None and not RESPONSE_ID.fullmatch(query_data.after):
        raise unknown_cursor
    with context().sessions() as session:
        page = client_requests.page(
            session,
            tenant(),
            statuses=[query_data.status] if query_data.status else [],
            application=query_data.application,
            after=query_data.after,
            limit=query_data.limit,
            oldest_first=query_data.order == "asc",
        )
    if page is None:
        raise unknown_cursor
    data = [shown(seen)[0] for seen in page.views]
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
    return shown(find(id))


@api.post("/<id>/cancel")
@api.output(Response)
@api.doc(summary="Cancel a response", security="ApiKey", responses=[401, 404, 429, 503])
def cancel(id: str) -> tuple[Response, dict[str, str]]:
    """What waits is cancelled at once, what runs as soon as its worker hears of it; a final one stays as it is."""
    with context().sessions() as session:
        client_requests.cancel(session, tenant(), known(id))
    return shown(find(id))


@api.delete("/<id>")
@api.output(Deleted)
@api.doc(summary="Delete a response", security="ApiKey", responses=[401, 404, 409, 429, 503])
def delete(id: str) -> Deleted:
    """Waiting ones are taken out of the queue; running ones must be cancelled first."""
    with context().sessions() as session:
        if not client_requests.remove(session, tenant(), known(id)):
            raise absent(id)
    return Deleted(id=id)


def asked(body: CreateResponse) -> Submission:
    """What a body asks for."""
    if isinstance(body.input, str):
        prompt = ClientPrompt(body.instructions or "", body.input)
    else:
        prompt = prompt_of(body.instructions, [Turn(message.role, message.text) for message in body.input])
    return Submission(
        model=body.model,
        prompt=prompt,
        limit=body.max_output_tokens,
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
    )


def shown(seen: RequestView) -> tuple[Response, dict[str, str]]:
    """The response of a request that was read, and when to ask again."""
    queued = seen.request.status is RequestStatus.queued
    where = place_in_queue(seen, context().rooms.get() if queued else None)
    wait = retry_after_s(seen, where)
    return response_of(seen, where), {} if wait is None else {"Retry-After": str(wait)}
