"""/v1/chat/completions and /v1/completions: the older calls that wait, for clients that do not poll.

Each is a request like any other: stored, predicted, batched, and to be seen under /v1/responses with `resp_` in its id.
"""

from typing import Literal

from apiflask import APIBlueprint

from models import client_requests
from models.client_requests import RequestView
from models.queue_position import QueuePlace
from models.tables import RequestStatus
from webapp.app_context import context
from webapp.auth import tenant
from webapp.chat_schemas import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Common,
    Completion,
    CompletionChoice,
    CompletionUsage,
    CreateChatCompletion,
    CreateCompletion,
)
from webapp.client_errors import InvalidRequest, NotAnswered, NotInTime
from webapp.prompt_limits import ClientPrompt, Turn, prompt_of
from webapp.response_objects import magnus_of
from webapp.submission import Submission, submit_and_wait

api = APIBlueprint("chat", __name__, url_prefix="/v1", tag="Completions")


@api.post("/chat/completions")
@api.input(CreateChatCompletion)
@api.output(ChatCompletion)
@api.doc(summary="Answer a chat", security="ApiKey", responses=[400, 401, 404, 413, 422, 429, 502, 503, 504])
def chat(json_data: CreateChatCompletion) -> ChatCompletion:
    """Waits for the answer, at most as long as the service allows, and cancels the request when that is over."""
    prompt = prompt_of(None, [Turn(message.role, message.text) for message in json_data.messages])
    newer = json_data.max_completion_tokens
    named = "max_tokens" if newer is None else "max_completion_tokens"
    seen = answer(asked(json_data, prompt, json_data.max_tokens if newer is None else newer, "messages", named))
    return ChatCompletion(
        id=seen.request.id.replace("resp_", "chatcmpl-", 1),
        created=int(seen.request.arrived_at.timestamp()),
        model=seen.request.model,
        choices=[ChatChoice(message=AssistantMessage(content=text_of(seen)), finish_reason=reason_of(seen))],
        usage=usage_of(seen),
        magnus=magnus_of(seen, QueuePlace()),
    )


@api.post("/completions")
@api.input(CreateCompletion)
@api.output(Completion)
@api.doc(summary="Answer a prompt", security="ApiKey", responses=[400, 401, 404, 413, 422, 429, 502, 503, 504])
def completion(json_data: CreateCompletion) -> Completion:
    """Like a chat with one message of the user's."""
    seen = answer(asked(json_data, ClientPrompt("", json_data.prompt), json_data.max_tokens, "prompt", "max_tokens"))
    return Completion(
        id=seen.request.id.replace("resp_", "cmpl-", 1),
        created=int(seen.request.arrived_at.timestamp()),
        model=seen.request.model,
        choices=[CompletionChoice(text=text_of(seen), finish_reason=reason_of(seen))],
        usage=usage_of(seen),
        magnus=magnus_of(seen, QueuePlace()),
    )


def asked(body: Common, prompt: ClientPrompt, limit: int | None, prompt_param: str, limit_param: str) -> Submission:
    """What either body asks for."""
    return Submission(
        model=body.model,
        prompt=prompt,
        limit=limit,
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


def answer(asked: Submission) -> RequestView:
    """The answered request; raises NotInTime, NotAnswered, or InvalidRequest if somebody cancelled it."""
    seen = submit_and_wait(asked)
    request = seen.request
    if not request.status.final:
        with context().sessions() as session:
            client_requests.cancel(session, tenant(), request.id)
        raise NotInTime(
            f"No answer within {context().wait_s:g} s; {request.id} was cancelled. "
            "For long work send POST /v1/responses with background=true and poll."
        )
    if request.status is RequestStatus.failed:
        why = request.error or {}
        raise NotAnswered(f"{request.id} failed: {why.get('message', 'no reason is known')}", code=why.get("code"))
    if request.status is RequestStatus.cancelled:
        raise InvalidRequest(f"{request.id} was cancelled.", code="cancelled")
    return seen


def text_of(seen: RequestView) -> str:
    """The answer's text."""
    return seen.request.output_text or ""


def reason_of(seen: RequestView) -> Literal["stop", "length"]:
    """Why the answer ended."""
    return "length" if seen.request.status is RequestStatus.incomplete else "stop"


def usage_of(seen: RequestView) -> CompletionUsage:
    """Tokens read and written."""
    read, written = seen.request.prompt_tokens, seen.request.output_tokens or 0
    return CompletionUsage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
