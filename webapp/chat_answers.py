"""What the answers of /v1/chat/completions and /v1/completions say of an answered request, streamed or not."""

from typing import Literal

from models.client_requests import RequestView
from models.tables import RequestStatus
from webapp.chat_schemas import CompletionUsage


def finish_reason_of(view: RequestView) -> Literal["stop", "length"]:
    """Why the answer ended: at its limit, or else by itself or before a stop string."""
    return "length" if view.request.status is RequestStatus.incomplete else "stop"


def usage_of(view: RequestView) -> CompletionUsage:
    """Tokens of the prompt and of the answer."""
    prompt, answer = view.request.prompt_tokens, view.request.output_tokens or 0
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)
