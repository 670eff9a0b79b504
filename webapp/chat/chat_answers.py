"""What the answers of /v1/chat/completions and /v1/completions say of an answered request, streamed or not."""

from collections.abc import Sequence
from typing import Literal

from models.client_requests import RequestView
from models.tables import RequestStatus
from webapp.chat.chat_schemas import CompletionUsage


def finish_reason_of(view: RequestView) -> Literal["stop", "length"]:
    """Why the answer ended: at its limit, or else by itself or before a stop string."""
    return "length" if view.request.status is RequestStatus.incomplete else "stop"


def usage_of(views: Sequence[RequestView], *, answers_a_prompt: int) -> CompletionUsage:
    """Tokens of the prompts, each of which has so many answers beside each other, and of all answers."""
    prompt = sum(view.request.prompt_tokens for view in views[::answers_a_prompt])
    answer = sum(view.request.output_tokens or 0 for view in views)
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)
