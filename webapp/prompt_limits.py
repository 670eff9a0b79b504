"""Refuses a request for its size or its model: prompts of more than Lmax tokens, limits above Gmax, other models.

A body of more than MAGNUS_MAX_BODY_BYTES is refused earlier, before it is parsed, with status 413: Flask does that, by
its setting MAX_CONTENT_LENGTH, which `webapp/app.py` sets.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jinja2 import TemplateError

from inference.remote.server_tokens import request_tokens_of
from inference.request_tokens import RequestTokens
from settings import Settings
from webapp.client_errors import InvalidRequest, NotFound
from webapp.client_prompt import ClientPrompt

# A prompt of more characters than this for each token of Lmax is refused without being tokenized. Any value above the
# longest token of the model's vocabulary does: no vocabulary in use has tokens of 256 characters.
MAX_CHARACTERS_PER_TOKEN = 256

# By what a worker's engine may lack: what its absence means, and what the client can do.
UNABLE = {
    "temperature": "The engine behind this model samples all requests alike: only temperature 0 can be asked for.",
    "top_k": "The engine behind this model has no top_k: leave it out.",
    "response_format": "The engine behind this model cannot hold an answer to a JSON format: ask for JSON in the "
    "instructions and check the answer, or serve the model with vLLM or llama.cpp.",
    "logprobs": "The engine behind this model tells no log probabilities: leave them out, or serve the model with vLLM "
    "or llama.cpp.",
}


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of the whole prompt and of the user input alone."""

    prompt_tokens: int
    input_tokens: int


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The served model's name, as clients send it, with the longest prompt (Lmax) and answer (Gmax) in tokens."""

    model_name: str
    prompt_format: RequestTokens
    max_prompt_tokens: int
    max_output_tokens: int

    def check_model(self, model: str) -> None:
        """Raise NotFound for the name of another model."""
        if model != self.model_name:
            raise NotFound(
                f"The model '{model[:200]}' does not exist; this service answers with '{self.model_name}'.",
                param="model",
                code="model_not_found",
            )

    def count_tokens(self, prompt: ClientPrompt, *, param: str) -> TokenCounts:
        """Tokens as the worker will prefill them; raises InvalidRequest above Lmax, naming `param`."""
        characters = len(prompt.instructions) + len(prompt.input)
        if characters > self.max_prompt_tokens * MAX_CHARACTERS_PER_TOKEN:
            raise self._too_long(f"{characters:,} characters", param)
        try:
            tokens = len(self._encode(prompt))
        except TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses this conversation: {error}.", param=param
            ) from error
        if tokens > self.max_prompt_tokens:
            raise self._too_long(f"{tokens:,} tokens", param)
        return TokenCounts(tokens, self.prompt_format.count(prompt.input))

    def check_workers(self, tokens: int, largest_tokens: int | None, *, param: str) -> None:
        """Raise InvalidRequest if the largest worker's memory, as far as it is known, leaves no place for an answer."""
        if largest_tokens is not None and tokens >= largest_tokens:
            raise InvalidRequest(
                f"The largest worker's memory holds {largest_tokens:,} tokens of a prompt and its answer, "
                f"but your prompt has {tokens:,}. Shorten the input or the instructions.",
                param=param,
                code="context_length_exceeded",
            )

    def check_needs(self, needs: Mapping[str, str], lacking: Collection[str]) -> None:
        """Raise InvalidRequest for what no worker's engine can do, as far as that is known.

        `needs`: what the request asks for, each with the field that does.
        """
        for ability, param in needs.items():
            if ability in lacking:
                raise InvalidRequest(UNABLE[ability], param=param, code="unsupported_value")

    def output_limit(self, requested: int | None, *, param: str) -> int:
        """The answer's limit in tokens, by default Gmax; raises InvalidRequest above Gmax, naming `param`."""
        if requested is not None and requested > self.max_output_tokens:
            raise InvalidRequest(
                f"Invalid '{param}': this service answers with at most {self.max_output_tokens:,} tokens, "
                f"but {requested:,} were asked for.",
                param=param,
                code="integer_above_max_value",
            )
        return self.max_output_tokens if requested is None else requested

    def _encode(self, prompt: ClientPrompt) -> list[int]:
        turns = [(turn.role, turn.content) for turn in prompt.messages]
        return self.prompt_format.encode_request(prompt.instructions, prompt.input, turns)

    def _too_long(self, length: str, param: str) -> InvalidRequest:
        return InvalidRequest(
            f"This model's prompts have at most {self.max_prompt_tokens:,} tokens, but yours has {length}. "
            "Shorten the input or the instructions.",
            param=param,
            code="context_length_exceeded",
        )


def prompt_limits_of(settings: Settings) -> PromptLimits:
    """The limits that the settings name, with the served model's tokenizer; raises UnreadableTokenizer."""
    key = settings.engine_key.get_secret_value() if settings.engine_key else None
    prompt_format = request_tokens_of(settings.model, key)
    name = settings.model_name or prompt_format.name
    return PromptLimits(name, prompt_format, settings.max_prompt_tokens, settings.max_output_tokens)
