"""Refuses a request for its size or its model: prompts of more than Lmax tokens, limits above Gmax, other models.

A body of more than MAGNUS_MAX_BODY_BYTES is refused earlier, before it is parsed, with status 413: Flask does that, by
its setting MAX_CONTENT_LENGTH, which `webapp/app.py` sets.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jinja2 import TemplateError

from inference.engine_errors import TooExpensive
from inference.prompts.model_prompt import LONG_CHARACTERS, ModelPrompt
from inference.prompts.request_tokens import RequestTokens, thinking_variables
from inference.remote.server_tokens import load_request_tokens
from processes.cpu_turns import others_turn
from processes.ttl_cache import TtlCache
from protocol.client_errors import InvalidRequest, NotFound, Unserved
from protocol.limits.text_limits import MAX_CHARACTERS_PER_TOKEN, TOO_LONG, TextLimits, text_limits_of
from request_body import PLAIN, AnswerForm, RequestBody
from scheduling.request import lacking
from settings import Settings

# Lmax for a model whose context is not known here, such as a server's; the server refuses prompts that are too long.
UNKNOWN_CONTEXT = 32_768

ADAPTERS_TTL_S = 1.0  # the adapters are read at most once in this time, by one short query

# The most bytes of a request in the database: the first number, plus the second for each token of the longest prompt.
# The bound on tokens is not enough, because parts of a body, such as tools that must not be called, are outside the
# prompt. Real tools take some kilobytes, a token some bytes, a conversation's token twice as many. Not tuned.
STORED_BYTES, STORED_BYTES_PER_TOKEN = 2**20, 64

# Message by ability that the engines of a model may lack: the reason, and what the client can do. For an ability that
# is not listed, the client is asked to leave its option out.
UNABLE = {
    "temperature": "The engine behind this model samples all requests alike: only temperature 0 can be asked for.",
    "ignore_eos": "The engine behind this model cannot go on behind an end of sequence: leave ignore_eos out.",
    "min_tokens": "The engine behind this model knows no least length: leave min_tokens out.",
    "thinking_token_budget": "The engine behind this model cannot end its thinking: leave this out, serve the model "
    "with our own engine, or start vLLM with a reasoning parser.",
    "stop_token_ids": "The engine behind this model tells no token ids: use stop strings instead.",
    "raw_prompt": "The engine behind this model takes chats only: use /v1/chat/completions.",
    "tools": "The engine behind this model takes chats without tools only: leave them out.",
    "continue_final_message": "The engine behind this model takes whole messages only: end with the user's.",
    "reasoning": "The engine behind this model cannot be told how to reason: leave this out.",
    "format_after_thinking": "The engine behind this model cannot hold an answer to a format once the model has "
    "thought: tell it not to think (reasoning_effort none), or serve the model with our own engine.",
    "prompt_logprobs": "The engine behind this model tells no log probabilities of prompts: leave echo out.",
    "response_format": "The engine behind this model cannot hold an answer to a JSON format: ask for JSON in the "
    "instructions and check the answer, or serve the model with our own engine, vLLM or llama.cpp.",
    "pattern": "The engine behind this model cannot hold an answer to a pattern, to choices or to a grammar: ask for a "
    "JSON schema with `pattern` or `enum`, or serve the model with our own engine or vLLM.",
    "logprobs": "The engine behind this model tells no log probabilities: leave them out, or serve the model with our "
    "own engine, vLLM or llama.cpp.",
}
NO_TOOLS = (
    "The chat template of this model knows no tools: describe them in the instructions, or serve a model that was "
    "trained to call them."
)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of the whole prompt and of the user input alone, and the form of the answer to it."""

    prompt_tokens: int
    input_tokens: int
    answer_form: AnswerForm = PLAIN


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The served model's names, as clients send them, with the longest prompt (Lmax) and answer (Gmax) in tokens."""

    model_name: str
    prompt_format: RequestTokens
    max_prompt_tokens: int
    max_output_tokens: int
    further_names: tuple[str, ...] = ()
    # The limit of answers to calls that name none; None if the operator sets Gmax. Otherwise Gmax is the model's
    # context, and a limit that is too high is cut to what the prompt leaves of the context, not refused.
    default_output_tokens: int | None = None
    refuses_hosted_tools: bool = False  # tools that only OpenAI or Anthropic runs are refused, not left out
    literal_schemas: bool = False  # if True, schemas without `additionalProperties` allow further properties
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)  # the model's own, where a client sends none
    unserved_s: float = math.inf  # a model with waiting requests and no worker for this long gets no new requests
    texts: TextLimits = field(default_factory=TextLimits)  # limits of the models for vectors and scores
    all_adapters: Callable[[], Mapping[str, str]] = dict  # reads all workers' adapters, each with its base
    others: Mapping[str, "PromptLimits"] = field(default_factory=dict)  # limits of the models of MAGNUS_MODELS, by name

    @property
    def adapters(self) -> list[str]:
        """The adapters that answer beside the served model."""
        own = {self.model_name, *self.further_names, *self.others, *self.texts.models}
        return sorted(name for name, base in self.all_adapters().items() if base == self.model_name and name not in own)

    @property
    def longest_tokens(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        allowed = self.max_prompt_tokens + self.max_output_tokens
        return min(allowed, self.prompt_format.context_tokens or allowed)

    def of(self, model: str) -> "PromptLimits":
        """Returns the limits of this model or adapter; raises NotFound, or InvalidRequest if it generates nothing."""
        self.texts.refuse_chats(model)
        if model == self.model_name or model in self.further_names:
            return self
        if model in self.others:
            return self.others[model]
        adapters = self.adapters
        if model not in adapters:
            served = " or ".join(f"'{name}'" for name in (self.model_name, *self.others))
            beside = f" and with the adapters {', '.join(adapters)}" if adapters else ""
            raise NotFound(
                f"The model '{model[:200]}' does not exist; this service answers with {served}{beside}.",
                param="model",
                code="model_not_found",
            )
        return self

    def stored_name(self, model: str) -> str:
        """Returns the name that stored requests for this model have: a further name becomes the model's own."""
        return self.model_name if model in self.further_names else model

    def check_served(self, model: str, unserved_s: float, waiting: int) -> None:
        """Raises Unserved if the model's `waiting` requests have had no worker for too long."""
        if unserved_s > self.unserved_s:
            raise Unserved(
                f"No worker has served the model '{model}' for {unserved_s / 60:,.0f} minutes, and "
                f"{waiting:,} requests wait for it. Try again later, or ask the operator.",
                param="model",
            )

    def count_tokens(self, prompt: ModelPrompt, *, param: str, tenant: str) -> TokenCounts:
        """Counts tokens as the worker will prefill them; raises InvalidRequest above Lmax, naming `param`."""
        ids = self.encode(prompt, param=param, tenant=tenant)
        if not ids:
            raise InvalidRequest(f"Invalid '{param}': must not be empty.", param=param)
        characters = prompt.characters
        form = prompt.answer_form(self.prompt_format, ids)
        if characters > LONG_CHARACTERS:
            return TokenCounts(len(ids), len(ids) * len(prompt.input) // characters, form)
        return TokenCounts(len(ids), self.prompt_format.count(prompt.input), form)

    def check_ids(self, ids: Collection[int], *, param: str) -> None:
        """Raises InvalidRequest for a token id outside the vocabulary, if its size is known."""
        most = self.prompt_format.vocabulary_size
        if most is not None and max(ids, default=0) >= most:
            raise InvalidRequest(f"Invalid '{param}': token ids are below {most:,} here.", param=param)

    def encode(self, prompt: ModelPrompt, *, param: str, tenant: str) -> list[int]:
        """Encodes a prompt; raises InvalidRequest above Lmax, for unknown token ids and unsupported tools."""
        characters = prompt.characters
        if characters > self.max_prompt_tokens * MAX_CHARACTERS_PER_TOKEN:
            raise self._too_long(f"{characters:,} characters", param)
        self.check_ids(prompt.body.prompt_ids, param=param)
        if prompt.body.uses_tools and not self.prompt_format.takes_tools:
            param = "tools" if prompt.body.offered_tools else param
            raise InvalidRequest(NO_TOOLS, param=param, code="unsupported_value")
        try:
            with others_turn():
                ids = prompt.encode(self.prompt_format, self.max_prompt_tokens, tenant)
        except TooExpensive as error:
            raise InvalidRequest(
                f"Your prompt has {characters:,} characters that are expensive to encode: {error}. Please shorten it.",
                param=param,
                code=TOO_LONG,
            ) from error
        except TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses this conversation: {error}.", param=param
            ) from error
        if len(ids) > self.max_prompt_tokens:
            raise self._too_long(f"{'' if characters <= LONG_CHARACTERS else 'at least '}{len(ids):,} tokens", param)
        self._check_embedded(ids, param)
        return ids

    def _check_embedded(self, ids: Sequence[int], param: str) -> None:
        """Raises InvalidRequest for a token of the tokenizer that the model has no embedding for."""
        most = self.prompt_format.vocabulary_size
        unknown = None if most is None else next((one for one in ids if one >= most), None)
        if unknown is not None:
            text = self.prompt_format.token_bytes(unknown).decode("utf-8", "replace")
            raise InvalidRequest(
                f"Invalid '{param}': its token {text!r} has the id {unknown:,}, but the model knows only the {most:,} "
                "tokens with lower ids. Please leave it out.",
                param=param,
            )

    def check_template(self, body: RequestBody, *, effort: str) -> None:
        """Raises InvalidRequest for options that the chat template lacks; an `effort` of "none" is always accepted."""
        known = self.prompt_format.template_variables
        if known is None:  # the template is a server's, which gets the options as they are
            return
        for name in body.template_variables:
            if name not in known:
                names = ", ".join(sorted(known)) or "the chat"
                raise InvalidRequest(
                    f"The chat template of this model knows no '{name}', only {names}.",
                    param=f"chat_template_kwargs.{name}",
                    code="unsupported_value",
                )
        unneeded = body.reasoning == "none" and not self.prompt_format.thinks
        if body.reasoning is not None and not unneeded and known.isdisjoint(thinking_variables(body.reasoning)):
            raise InvalidRequest(
                f"The chat template of this model cannot be told how much to think: leave {effort} out.",
                param=effort,
                code="unsupported_value",
            )

    def check_size(self, size_bytes: int, *, param: str) -> None:
        """Raises InvalidRequest for a request that would take too many bytes in the database."""
        most = STORED_BYTES + STORED_BYTES_PER_TOKEN * self.max_prompt_tokens
        if size_bytes > most:
            raise InvalidRequest(
                f"Your request takes {size_bytes:,} bytes, but this service stores at most {most:,} of each. Shorten "
                f"'{param}'.",
                param=param,
                code="request_too_large",
            )

    def check_workers(self, tokens: int, largest_tokens: int | None, *, param: str) -> None:
        """Raises InvalidRequest if the largest worker's memory, where it is known, has no space for an answer."""
        if largest_tokens is not None and tokens >= largest_tokens:
            raise InvalidRequest(
                f"The largest worker's memory holds {largest_tokens:,} tokens of a prompt and its answer, "
                f"but your prompt has {tokens:,}. Shorten the input or the instructions, or let the operator raise "
                "MAGNUS_KV_BUDGET.",
                param=param,
                code=TOO_LONG,
            )

    def check_needs(self, needs: Mapping[str, str], lacks: Collection[str]) -> None:
        """Raises InvalidRequest for a need that all engines lack; `needs` has the client's field of each need."""
        for ability in lacking(needs, lacks):
            text = UNABLE.get(ability, f"The engine behind this model has no {ability}: leave it out.")
            raise InvalidRequest(text, param=needs[ability], code="unsupported_value")

    def output_limit(self, requested: int | None, *, param: str) -> int:
        """Returns the answer's limit in tokens; raises InvalidRequest above an operator's Gmax, naming `param`."""
        most = self.max_output_tokens
        if requested is not None and requested > most and self.default_output_tokens is None:
            raise InvalidRequest(
                f"Invalid '{param}': this service answers with at most {self.max_output_tokens:,} tokens, "
                f"but {requested:,} were asked for.",
                param=param,
                code="integer_above_max_value",
            )
        return min(requested or self.default_output_tokens or most, most)

    def fitting_limit(self, limit_tokens: int, prompt_tokens: int) -> int:
        """Returns an answer's limit, cut to what the prompt leaves of the context."""
        left = max(1, self.max_output_tokens + 1 - prompt_tokens)
        return limit_tokens if self.default_output_tokens is None else min(limit_tokens, left)

    def _too_long(self, length: str, param: str) -> InvalidRequest:
        return InvalidRequest(  # clients recognise this error by these words
            f"This model's maximum context length is {self.max_prompt_tokens:,} tokens for the prompt. However, your "
            f"messages resulted in {length}. Please reduce the length of the messages.",
            param=param,
            code=TOO_LONG,
        )


def prompt_limits_of(settings: Settings, all_adapters: Callable[[], Mapping[str, str]]) -> PromptLimits:
    """Returns the limits of the settings, with the tokenizers of the served models; raises UnreadableModel.

    `all_adapters` reads the adapters of all workers, each with its base.
    """
    _, *others = settings.lms.items()
    return replace(
        _limits_of(settings, settings.model, settings.model_name),
        further_names=settings.further_model_names,
        texts=text_limits_of(settings),
        all_adapters=TtlCache(all_adapters, ADAPTERS_TTL_S).get,
        others={name: _limits_of(settings, directory, name) for name, directory in others},
    )


def _limits_of(settings: Settings, model: str, name: str | None) -> PromptLimits:
    prompt_format = load_request_tokens(model, settings.engine_key_text)
    context = prompt_format.context_tokens or UNKNOWN_CONTEXT
    longest = settings.max_prompt_tokens or context - 1  # leaves one position for the answer
    return PromptLimits(
        name or prompt_format.name,
        prompt_format,
        longest,
        settings.max_output_tokens or context - 1,
        default_output_tokens=settings.assumed_output_tokens if settings.max_output_tokens is None else None,
        refuses_hosted_tools=settings.hosted_tools == "refuse",
        literal_schemas=settings.parameters.schemas == "literal",
        sampling_defaults=prompt_format.generation.sampling if settings.generation_config == "auto" else {},
        unserved_s=settings.unserved_s,
    )
