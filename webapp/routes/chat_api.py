"""/v1/chat/completions and /v1/completions, which wait; each answer can be read under /v1/responses, too."""

from collections.abc import Sequence

from apiflask import APIBlueprint
from flask import Response as FlaskResponse
from flask import request

from models import client_requests
from models.tables import RequestStatus
from protocol.chat.chat_answers import chat_completion_of, completion_of
from protocol.chat.chat_objects import ChatCompletion, ChatCompletionList, Completion
from protocol.chat.chat_schemas import ChatListQuery, CommonFields, CreateChatCompletion, CreateCompletion
from protocol.chat.chat_submissions import chat_submission, completion_submissions
from protocol.requests.several_answers import require_answer, several
from protocol.requests.submission import Submission
from protocol.streaming.chat_chunks import ChunkKind, ShownUsage, chunks
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant
from webapp.requests.answer_stream import event_stream, shown_progress, submit_and_stream_all
from webapp.requests.awaited_answers import wait_for_answers
from webapp.requests.stored_requests import RESPONSE_ID, find_request, response_not_found
from webapp.routes.list_pages import json_answer, read_page
from webapp.waiting.patience import connection_of

ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)
api = APIBlueprint("chat", __name__, url_prefix="/v1", tag="Completions")


@api.post("/chat/completions")
@api.input(CreateChatCompletion)
@api.output(ChatCompletion)
@api.doc(summary="Answer a chat", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 502, 503, 504])
def chat(json_data: CreateChatCompletion) -> FlaskResponse:
    """Waits for the answer, at most as long as the service allows, and cancels the request when that time is over.

    With `stream: true` it answers at once, with chunks of the answer as they are generated.
    """
    limits, key = current_context().prompt_limits, request.headers.get("Idempotency-Key")
    submission = chat_submission(json_data, current_tenant(), limits, key)
    submissions = several(submission, json_data.n or 1)
    if submission.body.stream:
        return stream_chunks(submissions, "chat.completion.chunk", json_data, len(submissions))
    return json_answer(chat_completion_of(wait_for_answers(submissions)))


@api.get("/chat/completions")
@api.input(ChatListQuery, location="query")
@api.output(ChatCompletionList)
@api.doc(summary="List answered chats", security="ApiKey", responses=[400, 401, 403, 429, 503])
def list_chats(query_data: ChatListQuery) -> ChatCompletionList:
    """Lists stored answers as chats, one choice each; `after` takes the last id of the page before."""
    after = (query_data.after or "").replace("chatcmpl-", "resp_", 1) or None
    asked = {"limit": query_data.limit, "oldest_first": query_data.order == "asc", "texts": True}
    page = read_page("chat", RESPONSE_ID, client_requests.page, after, statuses=ANSWERED, **asked)
    chats = [chat_completion_of([view]) for view in page.entries if view.request.kind == "answer"]
    return ChatCompletionList.with_entries(chats, has_more=page.more)


@api.get("/chat/completions/<id>")
@api.output(ChatCompletion)
@api.doc(summary="Retrieve an answered chat", security="ApiKey", responses=[400, 401, 403, 404, 429, 502, 503])
def retrieve_chat(id: str) -> FlaskResponse:
    """Returns a stored answer as a chat with one choice."""
    view = find_request(current_context(), current_tenant(), id, "chatcmpl-")
    require_answer(view)
    if view.request.status not in ANSWERED or view.request.kind != "answer":
        raise response_not_found(id)
    return json_answer(chat_completion_of([view]))


@api.post("/completions")
@api.input(CreateCompletion)
@api.output(Completion)
@api.doc(summary="Answer a prompt", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 502, 503, 504])
def completion(json_data: CreateCompletion) -> FlaskResponse:
    """Continues one prompt or each of several, read by the model without a chat template; otherwise like a chat."""
    limits, key = current_context().prompt_limits, request.headers.get("Idempotency-Key")
    submissions, answers = completion_submissions(json_data, current_tenant(), limits, key), json_data.n or 1
    if submissions[0].body.stream:
        return stream_chunks(submissions, "text_completion", json_data, answers)
    return json_answer(completion_of(wait_for_answers(submissions), answers))


def stream_chunks(
    submissions: Sequence[Submission], kind: ChunkKind, body: CommonFields, answers_a_prompt: int
) -> FlaskResponse:
    """Returns the answers as server-sent events."""
    context, asked = current_context(), body.stream_options
    shown = ShownUsage(
        answers_a_prompt,
        at_end=bool(asked and asked.include_usage),
        in_chunks=bool(asked and asked.continuous_usage_stats),
        count=context.prompt_limits.of(body.model).prompt_format.count,
    )
    progress = shown_progress(context, body.model, asked.include_progress if asked else None)
    streams = submit_and_stream_all(context, submissions, connection_of(request))
    return event_stream(streams, lambda: chunks(streams, kind, shown, progress))
