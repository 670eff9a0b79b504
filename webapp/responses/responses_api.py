"""/v1/responses: submit, poll, list, cancel, delete. Reads and writes the database alone, never the broker."""

from collections.abc import Callable
from functools import partial

from apiflask import APIBlueprint
from flask import Response as FlaskResponse
from flask import request

from models import client_requests, notifications
from models.client_requests import RequestView
from models.planning.queue_position import place_in_queue
from request_body import StoredTurn
from webapp.api_objects import json_answer, read_page
from webapp.app_context import current_context
from webapp.auth import current_tenant
from webapp.client_errors import InvalidRequest
from webapp.limits.prompt_limits import PromptLimits
from webapp.requests.client_prompt import opening_turns, prompt_of_turns
from webapp.requests.options import stored_format
from webapp.requests.several_answers import submit_all_and_wait
from webapp.requests.stored_requests import (
    RESPONSE_ID,
    cancel_request,
    find_and_wait,
    find_request,
    forget_unstored,
    require_response_id,
    response_not_found,
)
from webapp.requests.submission import FieldNames, Submission, served_tier, submit
from webapp.requests.tools import function_fields, functions_of, hosted_kinds, stored_choice
from webapp.responses.conversation import (
    ReferencedItems,
    earlier_turns,
    fitting,
    referenced_items,
    refuse_references,
    turns_of,
)
from webapp.responses.response_objects import Deleted, Response, ResponseList, response_of, retry_after_s
from webapp.responses.response_schemas import CreateResponse, ListQuery, RetrieveQuery
from webapp.streaming.answer_stream import event_stream, find_and_stream, submit_and_stream_all
from webapp.streaming.response_events import response_events
from webapp.waiting.patience import connection_of, patience_of, preferred_wait_s

api = APIBlueprint("responses", __name__, url_prefix="/v1/responses", tag="Responses")


@api.post("")
@api.input(CreateResponse)
@api.output(Response)
@api.doc(summary="Submit a request", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 503])
def create(json_data: CreateResponse) -> FlaskResponse:
    """Store a request; it is in the database before the answer leaves.

    With `background: true` the answer comes at once, with an id to poll. Otherwise it comes when the response is final,
    or after the service's bound in the state that it then has. With `stream: true` it comes as it is generated.
    """
    context, tenant = current_context(), current_tenant()
    earlier = partial(earlier_turns, context, tenant)
    key = request.headers.get("Idempotency-Key")
    referenced = partial(referenced_items, context, tenant)
    submission = response_submission(json_data, tenant, context.prompt_limits, key, earlier, referenced)
    if submission.body.stream:
        (stream,) = submit_and_stream_all(context, [submission], connection_of(request))
        return event_stream([stream], lambda: response_events(stream, answer_of(stream.view)[0]))
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
    read = partial(
        client_requests.page,
        tenant=current_tenant(),
        statuses=[query_data.status] if query_data.status else [],
        application=query_data.application,
        after=query_data.after,
        limit=query_data.limit,
        oldest_first=query_data.order == "asc",
        texts=True,
    )
    page = read_page(current_context().sessions, "response", RESPONSE_ID, query_data.after, read)
    return ResponseList.with_entries([answer_of(view)[0] for view in page.views], has_more=page.more)


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
        return event_stream([stream], lambda: response_events(stream, answer_of(stream.view)[0], after))
    wait_s = preferred_wait_s(request)
    if not wait_s:
        return json_answer(*answer_of(find_request(context, tenant, id)))
    patience = patience_of(request, context.wait_s)
    answer, headers = answer_of(find_and_wait(context, tenant, id, patience))
    return json_answer(answer, headers | {"Preference-Applied": f"wait={wait_s}"})


@api.post("/<id>/cancel")
@api.output(Response)
@api.doc(summary="Cancel a response", security="ApiKey", responses=[401, 403, 404, 429, 503])
def cancel(id: str) -> tuple[Response, dict[str, str]]:
    """Cancels a queued response at once, a running one once its worker hears of it; a final one stays as it is."""
    require_response_id(id)
    cancel_request(current_context(), current_tenant(), id)
    return answer_of(find_request(current_context(), current_tenant(), id))


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


def refuse_earlier(id: str) -> list[StoredTurn]:
    """Raises InvalidRequest, for submissions that must not read stored responses."""
    raise InvalidRequest("This request cannot go on from another one.", param="previous_response_id")


def response_submission(
    body: CreateResponse,
    tenant: str,
    limits: PromptLimits,
    key: str | None = None,
    earlier: Callable[[str], list[StoredTurn]] = refuse_earlier,
    referenced: ReferencedItems = refuse_references,
) -> Submission:
    """Returns a body's submission; raises InvalidRequest.

    `earlier` returns the turns of the response that this one continues, `referenced` stored items by their ids.
    """
    if body.store is False and body.background:
        raise InvalidRequest("What is not stored cannot be polled: leave out background or store.", param="store")
    limits, choice = limits.of(body.model), stored_choice(body.tool_choice)
    tools, dropped = functions_of(body.tools), hosted_kinds(body.tools)
    if dropped and limits.refuses_hosted_tools:
        raise InvalidRequest(f"No tool of the types {', '.join(dropped)} runs here: leave them out.", param="tools")
    offered = () if choice.mode == "none" else tools
    reasoning = body.reasoning.effort if body.reasoning else None
    prompt_of = partial(
        prompt_of_turns, body.instructions, tools=offered, reasoning=reasoning, variables=body.chat_template_kwargs
    )
    turns = turns_of(body.input, referenced)
    if body.previous_response_id is not None:
        turns = [*earlier(body.previous_response_id), *turns]
    if body.truncation == "auto":
        turns = fitting(limits, turns, prompt_of)
    prompt = prompt_of(turns)
    asked = body.request_body(
        prompt,
        limits.sampling_defaults,
        **function_fields(tools, choice, body.parallel_tool_calls),
        background=bool(body.background),
        format=stored_format(body.text.format) if body.text else None,
        dropped_tools=dropped or None,
        # the prompt's instructions also have the input's system messages, so the client's own are stored apart
        instructions=body.instructions or "" if opening_turns(turns) else None,
        seed=body.magnus.seed,
        stop=body.magnus.stop,
        top_k=body.magnus.top_k if body.top_k is None else body.top_k,
        top_logprobs=body.asked_logprobs,
    )
    return Submission(
        tenant=tenant,
        idempotency_key=key,
        model=body.model,
        prompt=prompt,
        body=asked,
        sent=body,
        limit_tokens=body.max_output_tokens,
        priority=body.magnus.priority,
        service_tier=served_tier(body.service_tier),
        deadline_s=body.magnus.deadline_s,
        names=FieldNames(
            format="text.format", reasoning="reasoning.effort", logprobs="include" if body.include else "top_logprobs"
        ),
    )


def answer_of(view: RequestView) -> tuple[Response, dict[str, str]]:
    """Returns the Response of a stored request, and the header that says when to poll again."""
    final = view.request.status.final
    queue_place = place_in_queue(view, None if final else current_context().queue_snapshot.get())
    wait_s = retry_after_s(view, queue_place)
    return response_of(view, queue_place), {} if wait_s is None else {"Retry-After": str(wait_s)}
