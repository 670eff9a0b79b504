"""/v1/chat/completions and /v1/completions: the older calls that wait, for clients that do not poll.

Each is stored, predicted and batched like any other request, and can be read under /v1/responses by its `resp_` id.
"""

from dataclasses import replace

from apiflask import APIBlueprint
from flask import Response as FlaskResponse
from flask import request

from models.client_requests import RequestView
from models.queue_position import QueuePlace
from webapp.app_context import current_context
from webapp.auth import current_tenant
from webapp.chat_answers import finish_reason_of, usage_of
from webapp.chat_schemas import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    CommonFields,
    Completion,
    CompletionChoice,
    CreateChatCompletion,
    CreateCompletion,
)
from webapp.client_connection import connection_of, patience_of
from webapp.client_errors import NotInTime
from webapp.client_prompt import ClientPrompt, Turn, prompt_of_turns
from webapp.output_options import stored_format
from webapp.response_objects import logprobs_of, magnus_of
from webapp.streaming.answer_stream import submit_and_stream
from webapp.streaming.chat_chunks import ChunkKind, chunks
from webapp.streaming.event_stream import event_stream
from webapp.submission import Submission, cancel_request, require_answer, submit_and_wait

api = APIBlueprint("chat", __name__, url_prefix="/v1", tag="Completions")


@api.post("/chat/completions")
@api.input(CreateChatCompletion)
@api.output(ChatCompletion)
@api.doc(summary="Answer a chat", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 502, 503, 504])
def chat(json_data: CreateChatCompletion) -> ChatCompletion | FlaskResponse:
    """Waits for the answer, at most as long as the service allows, and cancels the request when that is over.

    With `stream: true` it answers at once, with chunks of the answer as they are generated.
    """
    submission = chat_submission(json_data, current_tenant(), request.headers.get("Idempotency-Key"))
    if submission.stream:
        return stream_chunks(submission, "chat.completion.chunk", json_data.includes_usage)
    return chat_completion_of(wait_for_answer(submission))


@api.post("/completions")
@api.input(CreateCompletion)
@api.output(Completion)
@api.doc(summary="Answer a prompt", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 502, 503, 504])
def completion(json_data: CreateCompletion) -> Completion | FlaskResponse:
    """Like a chat with one message of the user's."""
    submission = completion_submission(json_data, current_tenant(), request.headers.get("Idempotency-Key"))
    if submission.stream:
        return stream_chunks(submission, "text_completion", json_data.includes_usage)
    return completion_of(wait_for_answer(submission))


def chat_submission(body: CreateChatCompletion, tenant: str, key: str | None = None) -> Submission:
    """What a chat asks for, in the name of this tenant, with its Idempotency-Key."""
    prompt = prompt_of_turns(None, [Turn(message.role, message.text) for message in body.messages])
    if body.max_completion_tokens is None:
        limit_tokens, limit_param = body.max_tokens, "max_tokens"
    else:
        limit_tokens, limit_param = body.max_completion_tokens, "max_completion_tokens"
    submission = submission_of(body, tenant, key, prompt, limit_tokens, "messages", limit_param)
    return replace(submission, format=stored_format(body.response_format), top_logprobs=body.asked_logprobs)


def completion_submission(body: CreateCompletion, tenant: str, key: str | None = None) -> Submission:
    """What a completion asks for, in the name of this tenant, with its Idempotency-Key."""
    prompt = ClientPrompt("", body.prompt)
    return submission_of(body, tenant, key, prompt, body.max_tokens, "prompt", "max_tokens")


def chat_completion_of(view: RequestView) -> ChatCompletion:
    """The answer of a chat whose request has one."""
    return ChatCompletion(
        id=view.request.id.replace("resp_", "chatcmpl-", 1),
        created=int(view.request.arrived_at.timestamp()),
        model=view.request.model,
        choices=[
            ChatChoice(
                message=AssistantMessage(content=text_of(view)),
                finish_reason=finish_reason_of(view),
                logprobs=None if view.logprobs is None else ChatLogprobs(content=logprobs_of(view)),
            )
        ],
        usage=usage_of(view),
        magnus=magnus_of(view, QueuePlace()),
    )


def completion_of(view: RequestView) -> Completion:
    """The answer of a completion whose request has one."""
    return Completion(
        id=view.request.id.replace("resp_", "cmpl-", 1),
        created=int(view.request.arrived_at.timestamp()),
        model=view.request.model,
        choices=[CompletionChoice(text=text_of(view), finish_reason=finish_reason_of(view))],
        usage=usage_of(view),
        magnus=magnus_of(view, QueuePlace()),
    )


def submission_of(
    body: CommonFields,
    tenant: str,
    key: str | None,
    prompt: ClientPrompt,
    limit_tokens: int | None,
    prompt_param: str,
    limit_param: str,
) -> Submission:
    """What either body asks for."""
    return Submission(
        tenant=tenant,
        idempotency_key=key,
        model=body.model,
        prompt=prompt,
        limit_tokens=limit_tokens,
        metadata=body.metadata or {},
        background=False,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.magnus.top_k,
        seed=body.seed,
        stop=body.stops,
        priority=body.magnus.priority,
        deadline_s=body.magnus.deadline_s,
        body=body,
        stream=bool(body.stream),
        prompt_param=prompt_param,
        limit_param=limit_param,
    )


def wait_for_answer(submission: Submission) -> RequestView:
    """The answered request; raises NotInTime, NotAnswered, or InvalidRequest if it was cancelled meanwhile."""
    context = current_context()
    patience = patience_of(request, context.wait_s)
    view = submit_and_wait(context, submission, patience)
    stored = view.request
    if not stored.status.final:
        if submission.idempotency_key is not None:
            raise NotInTime(f"No answer within {patience.wait_s:g} s. The same Idempotency-Key goes on waiting for it.")
        cancel_request(context, submission.tenant, stored.id)
        raise NotInTime(
            f"No answer within {patience.wait_s:g} s; {stored.id} was cancelled. "
            "For long work send POST /v1/responses with background=true and poll, or an Idempotency-Key and try again."
        )
    require_answer(view)
    return view


def stream_chunks(submission: Submission, kind: ChunkKind, includes_usage: bool) -> FlaskResponse:
    """The answer as server-sent events."""
    stream = submit_and_stream(current_context(), submission, connection_of(request))
    return event_stream(chunks(stream, kind, includes_usage), stream)


def text_of(view: RequestView) -> str:
    """The answer's text."""
    return view.request.output_text or ""
