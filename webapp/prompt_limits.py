"""From what clients send to what is stored: instructions and user input, their tokens, their application."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import TemplateError

from inference.prompt_format import PromptFormat
from webapp.client_errors import InvalidRequest, NotFound

LONGEST_TOKEN = 256  # characters; no vocabulary in use has words as long, so longer text is refused unread


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ClientPrompt:
    """What a model is asked: the instruction, the user input, and for a conversation every turn of it."""

    instructions: str
    input: str
    messages: tuple[Turn, ...] = ()

    @property
    def stored_messages(self) -> list[dict[str, str]]:
        """The turns as the request's body keeps them."""
        return [{"role": turn.role, "content": turn.content} for turn in self.messages]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of the whole prompt and of the user input alone."""

    prompt_tokens: int
    input_tokens: int


def prompt_of(instructions: str | None, turns: Sequence[Turn]) -> ClientPrompt:
    """System messages that open a conversation join the instructions; one user message alone is the user input."""
    opening = 0
    while turns[opening].role in ("system", "developer"):
        opening += 1
    said = "\n\n".join(part for part in (instructions, *(turn.content for turn in turns[:opening])) if part)
    rest = turns[opening:]
    if len(rest) == 1:
        return ClientPrompt(said, rest[0].content)
    conversation = tuple(Turn("system" if turn.role == "developer" else turn.role, turn.content) for turn in rest)
    transcript = "\n\n".join(f"{turn.role}: {turn.content}" for turn in conversation)
    return ClientPrompt(said, transcript, (Turn("system", said), *conversation) if said else conversation)


def application_of(metadata: Mapping[str, str], instructions: str) -> str:
    """The name that the client gave, else a digest of the instructions: requests of one kind share them."""
    return metadata.get("application") or hashlib.sha256(instructions.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The model that this service answers with, under the name that clients send, and its bounds in tokens."""

    name: str
    format: PromptFormat
    max_prompt_tokens: int
    max_output_tokens: int

    def check(self, model: str) -> None:
        """Refuse another model's name."""
        if model != self.name:
            raise NotFound(
                f"The model '{model[:200]}' does not exist; this service answers with '{self.name}'.",
                param="model",
                code="model_not_found",
            )

    def count(self, prompt: ClientPrompt, *, param: str) -> TokenCounts:
        """Tokens as the worker will prefill them; refuses a prompt longer than Lmax."""
        letters = len(prompt.instructions) + len(prompt.input)
        if letters > self.max_prompt_tokens * LONGEST_TOKEN:
            raise self._too_long(f"{letters:,} characters", param)
        try:
            tokens = len(self.encode(prompt))
        except TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses this conversation: {error}.", param=param
            ) from error
        if tokens > self.max_prompt_tokens:
            raise self._too_long(f"{tokens:,} tokens", param)
        return TokenCounts(tokens, self.format.count(prompt.input))

    def encode(self, prompt: ClientPrompt) -> list[int]:
        """The prompt's token ids."""
        turns = [(turn.role, turn.content) for turn in prompt.messages]
        return self.format.encode_request(prompt.instructions, prompt.input, turns)

    def limit(self, asked: int | None, *, param: str) -> int:
        """The answer's limit; refuses more than Gmax."""
        if asked is not None and asked > self.max_output_tokens:
            raise InvalidRequest(
                f"Invalid '{param}': this service answers with at most {self.max_output_tokens:,} tokens, "
                f"but {asked:,} were asked for.",
                param=param,
                code="integer_above_max_value",
            )
        return self.max_output_tokens if asked is None else asked

    def _too_long(self, length: str, param: str) -> InvalidRequest:
        return InvalidRequest(
            f"This model's prompts have at most {self.max_prompt_tokens:,} tokens, but yours has {length}. "
            "Shorten the input or the instructions.",
            param=param,
            code="context_length_exceeded",
        )
