"""Makes request bodies for each kind of server, and reads its chunks; unexpected shapes raise ServerGarbage."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from inference.answer_text import storable
from inference.engine_requests import MAX_TOKEN_ID, DecodingRequest, FinishReason, JsonFormat, TokenLogprob
from inference.remote.server_capabilities import ProbedServer, ServerKind
from inference.remote.server_errors import ServerBusy, ServerFailed, ServerGarbage
from inference.remote.token_logprobs import (
    StreamedValue,
    TokenId,
    completion_logprobs,
    llamacpp_logprobs,
    read_value,
)
from request_body import Sampling

# llama.cpp's error in a stream when its cache is full; it refuses a prompt that is too long with another message.
CACHE_IS_FULL = "Context size has been exceeded"

# Fields of Sampling, besides temperature, top_p and seed, that the bodies for vLLM, for llama.cpp and for others have.
OPENAI_OPTIONS = frozenset({"frequency_penalty", "presence_penalty", "logit_bias"})
VLLM_OPTIONS = OPENAI_OPTIONS | {"top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens"}
LLAMACPP_OPTIONS = VLLM_OPTIONS - {"min_tokens"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens or the text that one event of a stream adds to a row; a `reason` ends the row.

    `counted` is the number of tokens that this request has generated, `cached` the number of prompt tokens not
    computed, if the server reports them. `logprobs` has one entry for each token id, if the request asks for them.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    counted: int | None = None
    reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A request for `limit` more tokens of a row, after its prompt and `generated_ids`."""

    sequence: DecodingRequest
    generated_ids: tuple[int, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The path and body of a request to one kind of server, and the reader of its chunks."""

    path: str
    body: Callable[[ProbedServer, RowRequest], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], Chunk]


def completions_body(server: ProbedServer, row: RowRequest) -> dict[str, Any]:
    """Returns the body for `/v1/completions` with token ids in and out (vLLM, SGLang)."""
    sequence, sampling = row.sequence, row.sequence.sampling
    body: dict[str, Any] = {
        "model": sequence.adapter or server.model,
        "prompt": [*sequence.prompt_ids, *row.generated_ids],
        "max_tokens": row.limit,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,  # a model's own default would change greedy answers
        "min_p": sampling.min_p,
        "stop": list(sequence.stop),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    if sampling.min_tokens > len(row.generated_ids):
        body["min_tokens"] = min(sampling.min_tokens - len(row.generated_ids), row.limit)
    if sampling.thinking_token_budget is not None:  # of a resumed row, vLLM counts the tokens before, too
        body["thinking_token_budget"] = sampling.thinking_token_budget
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    body |= _openai_options(sampling)
    if sequence.level and server.capabilities.priority:
        body["priority"] = -sequence.level  # vLLM serves the lowest number first
    if sequence.cache_salt and server.capabilities.cache_salt:
        body["cache_salt"] = sequence.cache_salt
    if sequence.format is not None and sequence.format.pattern is not None:
        body["structured_outputs"] = {"regex": sequence.format.pattern}
    elif sequence.format is not None and sequence.format.grammar is not None:
        body["structured_outputs"] = {"grammar": sequence.format.grammar}
    elif sequence.format is not None:
        body["response_format"] = _response_format(sequence.format)
    if sequence.top_logprobs is not None:
        body |= {"logprobs": sequence.top_logprobs, "return_tokens_as_token_ids": True}
    return body


def _openai_options(sampling: Sampling) -> dict[str, Any]:
    """Returns the OPENAI_OPTIONS that ask for something; a server counts a resumed row's tokens anew."""
    options: dict[str, Any] = {}
    if sampling.counts_tokens:
        options |= {"frequency_penalty": sampling.frequency_penalty, "presence_penalty": sampling.presence_penalty}
    if sampling.logit_bias:
        options["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return options


def _response_format(format: JsonFormat) -> dict[str, Any]:
    if format.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(format.schema)}}


def chat_body(server: ProbedServer, row: RowRequest) -> dict[str, Any]:
    """Returns the body for `/v1/chat/completions`, which every OpenAI-compatible server has, with text in and out."""
    sequence, sampling = row.sequence, row.sequence.sampling
    body: dict[str, Any] = {
        "model": sequence.adapter or server.model,
        "messages": [{"role": role, "content": content} for role, content in sequence.turns],
        "max_tokens": row.limit,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "stream": True,
    }
    if not sampling.greedy:
        body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.seed is not None:
            body["seed"] = sampling.seed
    if server.kind == "openai":
        body["stream_options"] = {"include_usage": True}
    if server.capabilities.own_sampling:
        body |= _openai_options(sampling)
        if sequence.stop:
            body["stop"] = list(sequence.stop)
    return body


def llamacpp_body(server: ProbedServer, row: RowRequest) -> dict[str, Any]:
    """Returns the body for llama.cpp's own `/completion`."""
    sequence, sampling = row.sequence, row.sequence.sampling
    prompt = [*sequence.prompt_ids, *row.generated_ids]
    body: dict[str, Any] = {
        "model": server.model,  # llama.cpp's router serves several models
        "prompt": prompt,
        "n_predict": row.limit,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": len(prompt) + row.limit,  # all tokens; newer servers refuse -1, which meant this once
        "ignore_eos": sampling.ignore_eos,
        "seed": -1 if sampling.seed is None else sampling.seed,
        "stop": list(sequence.stop),
        "stream": True,
        "return_tokens": True,
        # Cached parts of a prompt are rounded differently from computed ones, so that a seed might give another text.
        "cache_prompt": sampling.greedy or sampling.seed is None,
    }
    body |= _openai_options(sampling)
    if sampling.logit_bias:
        body["logit_bias"] = [list(one) for one in sampling.logit_bias]  # the form that older servers know, too
    if sequence.format is not None:
        schema = sequence.format.schema
        body["json_schema"] = {"type": "object"} if schema is None else json.loads(schema)
    if sequence.top_logprobs is not None:
        body["n_probs"] = max(1, sequence.top_logprobs)  # 0 would turn log probabilities off
    return body


def _readable(text: object) -> object:
    """Replaces the characters of a text that JSON may hold but the database cannot store."""
    return storable(text) if isinstance(text, str) else text


_Text = Annotated[str, BeforeValidator(_readable)] | None
_Count = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKEN_ID)] | None


class _PromptDetails(StreamedValue):
    cached_tokens: _Count = None


class _Usage(StreamedValue):
    completion_tokens: _Count = None
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(StreamedValue):
    content: _Text = None


class _Choice(StreamedValue):
    text: _Text = None
    token_ids: tuple[TokenId, ...] | None = None
    logprobs: Any = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    stop_reason: Any = None

    @property
    def reason(self) -> FinishReason | None:
        """The reason for which the row has ended, if it has; raises ServerFailed or ServerGarbage."""
        if self.finish_reason is None:
            return None
        if self.finish_reason == "length":
            return "limit"
        if self.finish_reason == "stop":
            return "stop" if isinstance(self.stop_reason, str) else "eos"
        if self.finish_reason in ("abort", "error"):
            raise ServerFailed(f"it ended the row with {self.finish_reason}")
        raise ServerGarbage("an end of an unknown kind")


class _OpenAIChunk(StreamedValue):
    choices: Annotated[list[_Choice], Field(max_length=1)]  # empty in a chunk that has only counts
    usage: _Usage | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> tuple[_Choice, int | None, int | None]:
        """Returns the choice of a chunk, empty if it has none, and the numbers of tokens: generated so far, cached."""
        _raise_error(data)
        chunk = read_value(cls, data)
        usage = chunk.usage or _Usage()
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        return (chunk.choices or [_Choice()])[0], usage.completion_tokens, cached


class _Timings(StreamedValue):
    cache_n: _Count = None


class _LlamaCppChunk(StreamedValue):
    content: _Text
    tokens: tuple[TokenId, ...] | None = None
    tokens_predicted: _Count = None
    completion_probabilities: Any = None
    stop: Any = None
    stop_type: Any = None
    timings: _Timings | None = None


def read_completion(data: Mapping[str, Any]) -> Chunk:
    """Reads a chunk of `/v1/completions`."""
    choice, counted, cached = _OpenAIChunk.read(data)
    reason, logprobs = choice.reason, completion_logprobs(choice.logprobs)
    return Chunk(choice.token_ids or (), choice.text or "", counted, reason, logprobs, cached)


def read_chat(data: Mapping[str, Any]) -> Chunk:
    """Reads a chunk of `/v1/chat/completions`."""
    choice, counted, cached = _OpenAIChunk.read(data)
    text = choice.delta.content if choice.delta else None
    return Chunk((), text or "", counted, choice.reason, cached=cached)


def read_llamacpp(data: Mapping[str, Any]) -> Chunk:
    """Reads a chunk of `/completion`; raises ServerBusy if the cache that all slots share is full."""
    error = data.get("error")
    if isinstance(error, Mapping) and CACHE_IS_FULL in str(error.get("message")):
        raise ServerBusy(500, 0.0)
    _raise_error(data)
    chunk = read_value(_LlamaCppChunk, data)
    ids, text, logprobs = chunk.tokens or (), chunk.content or "", llamacpp_logprobs(chunk.completion_probabilities)
    if not chunk.stop:
        return Chunk(ids, text, logprobs=logprobs)
    reasons: dict[str, FinishReason] = {"eos": "eos", "limit": "limit", "word": "stop"}
    reason = reasons.get(str(chunk.stop_type))
    if reason is None:
        raise ServerGarbage("an end of an unknown kind")
    cached = chunk.timings.cache_n if chunk.timings else None
    return Chunk(ids, text, chunk.tokens_predicted, reason, logprobs, cached)


def _raise_error(data: Mapping[str, Any]) -> None:
    error = data.get("error")
    if error:
        raise ServerFailed(str(error.get("message", error) if isinstance(error, Mapping) else error))


WIRE_FORMATS: dict[ServerKind, WireFormat] = {
    "vllm": WireFormat("/v1/completions", completions_body, read_completion),
    "llamacpp": WireFormat("/completion", llamacpp_body, read_llamacpp),
    "transformers": WireFormat("/v1/chat/completions", chat_body, read_chat),
    "openai": WireFormat("/v1/chat/completions", chat_body, read_chat),
}
