"""Log probabilities as /v1/completions shows them: lists beside each other, with the places of tokens in the text."""

from typing import Any

from models.client_requests import RequestView
from webapp.chat.chat_schemas import CompletionLogprobs


def completion_logprobs(view: RequestView, *, with_prompt: bool) -> CompletionLogprobs | None:
    """Those of a stored answer, None if they were not asked for; `with_prompt`: the prompt's tokens are in front."""
    entries = view.logprobs
    if entries is None:
        return None
    offsets, offset = [], 0
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    nothing_in_front = 0 if with_prompt else -1
    return CompletionLogprobs(
        tokens=[entry["token"] for entry in entries],
        token_logprobs=[None if n == nothing_in_front else one["logprob"] for n, one in enumerate(entries)],
        top_logprobs=[None if n == nothing_in_front else _likeliest(one) for n, one in enumerate(entries)],
        text_offset=offsets,
    )


def _likeliest(entry: dict[str, Any]) -> dict[str, float]:
    """By the tokens' texts; of several tokens with the same text the likeliest counts."""
    likeliest: dict[str, float] = {entry["token"]: entry["logprob"]}
    for one in entry["top_logprobs"]:
        likeliest[one["token"]] = max(one["logprob"], likeliest.get(one["token"], one["logprob"]))
    return likeliest
