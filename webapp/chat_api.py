"""/v1/chat/completions and /v1/completions: the older calls that wait, for clients that do not poll.

Each is stored, predicted and batched like any other request, and can be read under /v1/responses by its `resp_` id.
"""

from dataclasses import replace
from typing import Literal

from apiflask import APIBlueprint
from flask import request

from models import client_requests
from models.client_requests import RequestView
from models.queue_position import QueuePlace
from models.tables import RequestStatus
from webapp.app_context import current_context
from webapp.auth import current_tenant
from webapp.chat_schemas import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    CommonFields,
    Completion,
    CompletionChoice,
    CompletionUsage,
    CreateChatCompletion,
    CreateCompletion,
)
from webapp.client_errors import InvalidRequest, NotAnswered, NotInTime
from webapp.client_prompt import ClientPrompt, Turn, prompt_of_turns
from webapp.output_options import stored_format
from webapp.response_objects import logprobs_of, magnus_of
from webapp.submission import Submission, submit_and_wait

api = APIBlueprint("chat", __name__, url_prefix="/v1", tag="Completions")


@api.post("/chat/completions")
@api.input(CreateChatCompletion)
@api.output(ChatCompletion)
@api.doc(summary="Answer a chat", security="ApiKey", responses=[400, 401, 404, 413, 422, 429, 502, 503, 504])
def chat(json_data: CreateChatCompletion) -> ChatCompletion:
    """Waits for the answer, at most as long as the service allows, and cancels the request when that is over."""
    prompt = prompt_of_turns(None, [Turn(message.role, message.text) for message in json_data.messages])
    if json_data.max_completion_tokens is None:
        limit_tokens, limit_param = json_data.max_tokens, "max_tokens"
    else:
        limit_tokens, limit_param = json_data.max_completion_tokens, "max_completion_tokens"
    asked = submission_of(json_data, prompt, limit_tokens, "messages", limit_param)
    asked = replace(asked, format=stored_format(json_data.response_format), top_logprobs=json_data.asked_logprobs)
    view = wait_for_answer(asked)
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


@api.post("/completions")
@api.input(CreateCompletion)
@api.output(Completion)
@api.doc(summary="Answer a prompt", security="ApiKey", responses=[400, 401, 404, 413, 422, 429, 502, 503, 504])
def completion(json_data: CreateCompletion) -> Completion:
    """Like a chat with one message of the user's."""
    prompt = ClientPrompt("", json_data.prompt)
    view = wait_for_answer(submission_of(json_data, prompt, json_data.max_tokens, "prompt", "max_tokens"))
    return Completion(
        id=view.request.id.replace("resp_", "cmpl-", 1),
        created=int(view.request.arrived_at.timestamp()),
        model=view.request.model,
        choices=[CompletionChoice(text=text_of(view), finish_reason=finish_reason_of(view))],
        usage=usage_of(view),
        magnus=magnus_of(view, QueuePlace()),
    )


def submission_of(
    body: CommonFields, prompt: ClientPrompt, limit_tokens: int | None, prompt_param: str, limit_param: str
) -> Submission:
    """What either body asks for, in the name of the current request's tenant."""
    return Submission(
        tenant=current_tenant(),
        idempotency_key=request.headers.get("Idempotency-Key"),
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
        prompt_param=prompt_param,
        limit_param=limit_param,
    )


def wait_for_answer(submission: Submission) -> RequestView:
    """The answered request; raises NotInTime, NotAnswered, or InvalidRequest if it was cancelled meanwhile."""
    context = current_context()
    view = submit_and_wait(context, submission)
    stored = view.request
    if not stored.status.final:
        with context.sessions() as session:
            client_requests.cancel(session, submission.tenant, stored.id)
        raise NotInTime(
            f"No answer within {context.wait_s:g} s; {stored.id} was cancelled. "
            "For long work send POST /v1/responses with background=true and poll."
        )
    if stored.status is RequestStatus.failed:
        error = stored.error or {}
        raise NotAnswered(f"{stored.id} failed: {error.get('message', 'no reason is known')}", code=error.get("code"))
    if stored.status is RequestStatus.cancelled:
        raise InvalidRequest(f"{stored.id} was cancelled.", code="cancelled")
    return view


def text_of(view: RequestView) -> str:
    """The answer's text."""
    return view.request.output_text or ""


def finish_reason_of(view: RequestView) -> Literal["stop", "length"]:
    """Why the answer ended: at its limit, or else by itself or before a stop string."""
    return "length" if view.request.status is RequestStatus.incomplete else "stop"


def usage_of(view: RequestView) -> CompletionUsage:
    """Tokens of the prompt and of the answer."""
    prompt, answer = view.request.prompt_tokens, view.request.output_tokens or 0
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)
