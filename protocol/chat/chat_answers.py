"""The answers of /v1/chat/completions and /v1/completions, made from the stored requests."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic_core import from_json

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from models.tables import RequestStatus
from protocol.chat.chat_objects import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionUsage,
    answered_call,
)
from protocol.requests.several_answers import one_by_one
from protocol.requests.submission import tier_of_answers
from protocol.responses.output_items import answer_parts, logprobs_of
from protocol.responses.response_objects import magnus_of
from request_body import read_body, readable_body


def finish_reason_of(view: RequestView) -> Literal["stop", "length"]:
    """Returns why the answer ended: "length" at its limit, else "stop"."""
    return "length" if view.request.status is RequestStatus.incomplete else "stop"


def usage_of(views: Sequence[RequestView], *, answers_a_prompt: int) -> CompletionUsage:
    """Counts the tokens of all answers and of their prompts, with `answers_a_prompt` answers for each prompt."""
    prompts = [view.request for view in views[::answers_a_prompt]]
    answer = sum(view.request.output_tokens or 0 for view in views)
    thought = [view.request.reasoning_tokens for view in views if view.request.reasoning_tokens is not None]
    cached = [prompt.cached_tokens for prompt in prompts if prompt.cached_tokens is not None]
    return CompletionUsage.of(
        sum(prompt.prompt_tokens for prompt in prompts),
        answer,
        sum(thought) if thought else None,
        sum(cached) if cached else None,
    )


def completion_logprobs(
    entries: Sequence[dict[str, Any]] | None, *, begins_a_prompt: bool, offset: int = 0
) -> CompletionLogprobs | None:
    """Returns stored log probabilities of a text that begins at character `offset`; None if none are stored."""
    if entries is None:
        return None
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    nothing_in_front = 0 if begins_a_prompt else -1
    return CompletionLogprobs(
        tokens=[entry["token"] for entry in entries],
        token_logprobs=[None if n == nothing_in_front else one["logprob"] for n, one in enumerate(entries)],
        top_logprobs=[None if n == nothing_in_front else _likeliest(one) for n, one in enumerate(entries)],
        text_offset=offsets,
    )


def _likeliest(entry: dict[str, Any]) -> dict[str, float]:
    """Returns log probabilities by the tokens' texts; if tokens share a text, the highest one."""
    likeliest: dict[str, float] = {entry["token"]: entry["logprob"]}
    for one in entry["top_logprobs"]:
        likeliest[one["token"]] = max(one["logprob"], likeliest.get(one["token"], one["logprob"]))
    return likeliest


def chat_completion_of(views: Sequence[RequestView]) -> ChatCompletion:
    """Returns the answers to a chat, one choice for each."""
    choices = [chat_choice(number, view) for number, view in enumerate(one_by_one(views))]
    return ChatCompletion(choices=choices, **common_fields(views, "chatcmpl-", answers_a_prompt=len(views)))


def chat_choice(index: int, view: RequestView) -> ChatChoice:
    """Returns an answer of a chat with its text and its calls."""
    parts = answer_parts(view)
    calls = [answered_call(call_id, call) for call_id, call in parts.calls]
    return ChatChoice(
        index=index,
        message=AssistantMessage(
            content=parts.text or (None if calls or parts.reasoning else ""),
            reasoning_content=parts.reasoning or None,
            tool_calls=calls or None,
        ),
        finish_reason="tool_calls" if calls and not parts.cut else finish_reason_of(view),
        logprobs=None if view.logprobs is None else ChatLogprobs(content=logprobs_of(view)),
    )


def completion_of(views: Sequence[RequestView], answers_a_prompt: int = 1) -> Completion:
    """Returns the answers to the prompts of a completion, those of the first prompt first."""
    echo = read_body(views[0].request.body).echo
    choices = [
        CompletionChoice(
            index=number,
            text=(view.request.input if echo else "") + (view.request.output_text or ""),
            finish_reason=finish_reason_of(view),
            logprobs=completion_logprobs(from_json(view.logprobs or "null"), begins_a_prompt=echo),
        )
        for number, view in enumerate(one_by_one(views))
    ]
    return Completion(choices=choices, **common_fields(views, "cmpl-", answers_a_prompt))


def common_fields(views: Sequence[RequestView], prefix: str, answers_a_prompt: int) -> dict[str, Any]:
    """Returns the fields of CommonAnswer without its choices; `prefix` begins the answer's id."""
    first = views[0].request
    return {
        "id": first.id.replace("resp_", prefix, 1),
        "created": int(first.arrived_at.timestamp()),
        "model": first.model,
        "service_tier": tier_of_answers(views),
        "usage": usage_of(views, answers_a_prompt=answers_a_prompt),
        "magnus": magnus_of(views[0], QueuePlace(), readable_body(first.body)),
    }
