"""Reads the log probabilities that servers stream with their tokens, and checks the shape of streamed values.

Tokens are identified by id, never by text. A server's values are untrusted: an unexpected shape raises ServerGarbage.
"""

import math
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inference.engine_requests import LEAST_LOGPROB, MAX_TOKEN_ID, TokenLogprob
from inference.remote.server_errors import ServerGarbage

MOST_LISTED = 64  # the most alternatives that a server may list for one token; no server lists as many
VLLM_TOKEN = "token_id:"  # noqa: S105  # vLLM's prefix of token names with `return_tokens_as_token_ids`


def _clamped(value: float) -> float:
    if math.isnan(value):
        raise ValueError("no number")
    return max(LEAST_LOGPROB, min(0.0, value))


def _number_of(token: object) -> object:
    """Returns the id in vLLM's name of a token, or None for another name, which the check of token ids refuses."""
    digits = token.removeprefix(VLLM_TOKEN) if isinstance(token, str) and token.startswith(VLLM_TOKEN) else ""
    return int(digits) if digits.isdecimal() and len(digits) <= 10 else None


TokenId = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKEN_ID)]
_NamedToken = Annotated[TokenId, BeforeValidator(_number_of)]
_Logprob = Annotated[float, Field(strict=True), AfterValidator(_clamped)]
_Likeliest = Annotated[dict[_NamedToken, _Logprob], Field(max_length=MOST_LISTED)]


class StreamedValue(BaseModel):
    """A part of a chunk as a server sends it; other fields are ignored."""

    model_config = ConfigDict(hide_input_in_errors=True)  # the input may quote the prompt


Streamed = TypeVar("Streamed", bound=StreamedValue)


def read_value(shape: type[Streamed], value: object) -> Streamed:
    """Returns a server's value as an instance of `shape`; raises ServerGarbage if it has another shape."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise ServerGarbage(str(error)) from error


class _CompletionLogprobs(StreamedValue):
    tokens: list[_NamedToken]
    token_logprobs: list[_Logprob]
    top_logprobs: list[_Likeliest | None]


class _ListedToken(StreamedValue):
    id: TokenId
    logprob: _Logprob


class _LlamaCppToken(_ListedToken):
    top_logprobs: Annotated[list[_ListedToken], Field(max_length=MOST_LISTED)]


class _LlamaCppLogprobs(StreamedValue):
    tokens: list[_LlamaCppToken]


def completion_logprobs(logprobs: object) -> tuple[TokenLogprob, ...]:
    """Returns the log probabilities in a chunk of `/v1/completions`, one for each of its tokens."""
    if logprobs is None:
        return ()
    read = read_value(_CompletionLogprobs, logprobs)
    if not len(read.tokens) == len(read.token_logprobs) == len(read.top_logprobs):
        raise ServerGarbage("log probabilities of other tokens")
    return tuple(
        TokenLogprob(token, value, _likeliest_first((top or {}).items()))
        for token, value, top in zip(read.tokens, read.token_logprobs, read.top_logprobs, strict=True)
    )


def llamacpp_logprobs(probabilities: object) -> tuple[TokenLogprob, ...]:
    """Returns the log probabilities in a chunk of llama.cpp's `/completion`, one for each of its tokens."""
    if probabilities is None:
        return ()
    return tuple(
        TokenLogprob(one.id, one.logprob, _likeliest_first((top.id, top.logprob) for top in one.top_logprobs))
        for one in read_value(_LlamaCppLogprobs, {"tokens": probabilities}).tokens
    )


def _likeliest_first(pairs: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))
