"""/v1/messages, Anthropic's API, which waits or is asked later; each answer is one of /v1/responses, too."""

from apiflask import APIBlueprint
from flask import Response as FlaskResponse
from flask import request

from protocol.messages.message_objects import AnsweredMessage, MessageTokens, message_of
from protocol.messages.message_schemas import CountMessageTokens, CreateMessage
from protocol.messages.message_submissions import message_prompt, message_submission
from protocol.requests.several_answers import require_answer
from protocol.streaming.message_events import message_events
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant
from webapp.requests.answer_stream import event_stream, shown_progress, submit_and_stream_all
from webapp.requests.awaited_answers import wait_for_answers
from webapp.requests.request_storing import submit
from webapp.requests.stored_requests import find_request, response_not_found
from webapp.routes.list_pages import json_answer
from webapp.waiting.patience import connection_of, prefers_async

api = APIBlueprint("messages", __name__, url_prefix="/v1/messages", tag="Messages")


@api.post("")
@api.input(CreateMessage)
@api.output(AnsweredMessage)
@api.doc(summary="Answer a message", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 502, 503, 504])
def message(json_data: CreateMessage) -> FlaskResponse:
    """Waits for the answer as a chat does; with `stream: true` it answers at once, with Anthropic's events.

    With the header `Prefer: respond-async` it answers at once, with a message to retrieve later.
    """
    context, key, later = current_context(), request.headers.get("Idempotency-Key"), prefers_async(request)
    submission = message_submission(json_data, current_tenant(), context.prompt_limits, key, background=later)
    if submission.body.stream:
        asked = json_data.stream_options.include_progress if json_data.stream_options else None
        progress = shown_progress(context, json_data.model, asked)
        streams = submit_and_stream_all(context, [submission], connection_of(request))
        return event_stream(streams, lambda: message_events(streams[0], progress))
    if later:
        return json_answer(message_of(submit(context, submission)), {"Preference-Applied": "respond-async"})
    return json_answer(message_of(*wait_for_answers([submission])))


@api.get("/<id>")
@api.output(AnsweredMessage)
@api.doc(summary="Retrieve a message", security="ApiKey", responses=[400, 401, 403, 404, 429, 502, 503])
def retrieve(id: str) -> FlaskResponse:
    """Returns a stored answer as a message; its `stop_reason` is null until it has ended."""
    view = find_request(current_context(), current_tenant(), id, "msg_")
    require_answer(view)
    if view.request.kind != "answer":
        raise response_not_found(id)
    return json_answer(message_of(view))


@api.post("/count_tokens")
@api.input(CountMessageTokens)
@api.output(MessageTokens)
@api.doc(summary="Count a message's tokens", security="ApiKey", responses=[400, 401, 403, 404, 413, 429, 503])
def count_tokens(json_data: CountMessageTokens) -> MessageTokens:
    """Counts the prompt tokens that a message with this body would have; nothing is stored."""
    limits = current_context().prompt_limits.of(json_data.model)
    prompt = message_prompt(json_data, limits)
    limits.check_template(prompt.body, effort="thinking")
    counts = limits.count_tokens(prompt, param="messages", tenant=current_tenant())
    return MessageTokens(input_tokens=counts.prompt_tokens)
