"""The answers of /v1/chat/completions and /v1/completions, made from the stored requests."""

from collections.abc import Sequence
from typing import Any, Literal

from models.client_requests import RequestView
from models.tables import RequestStatus
from webapp.chat.chat_objects import CompletionLogprobs, CompletionUsage


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
    """Returns stored log probabilities of a text behind `offset` characters, None if not asked for."""
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
