"""The interface that turns requests into token ids and answers into text: by our own tokenizer, or by a server's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference.answer_text import Detokenizer
from inference.isolated_calls import IsolatedCalls
from inference.json_grammar import FormatChecks
from inference.model_directory.generation_defaults import GenerationDefaults
from request_body import AnswerForm, Effort, TemplateVariable

Turn = tuple[str, str]  # role, content


@dataclass(frozen=True, slots=True)
class ChatEnding:
    """How a chat template ends a prompt, within the last message if the answer `continues` it, and what it may read.

    It may read `variables` and the clock, which shows the instant `rendered_at` in ISO 8601; "": the present one.
    """

    continues: bool = False
    variables: Mapping[str, TemplateVariable] = field(default_factory=dict)
    rendered_at: str = ""


def thinking_variables(effort: Effort | None) -> dict[str, TemplateVariable]:
    """Returns the template variables for this effort of thinking: of Qwen and GLM, of DeepSeek, and of gpt-oss."""
    if effort is None:
        return {}
    return {"enable_thinking": effort != "none", "thinking": effort != "none", "reasoning_effort": effort}


NEXT_TURN = ChatEnding()


class RequestTokens(Protocol):
    """One model's chat template and tokenizer; every method that asks a server raises TokenizerAway."""

    @property
    def name(self) -> str:
        """Returns the model's name for clients if the operator gives it none."""

    @property
    def detokenizer(self) -> Detokenizer | None:
        """Returns the tokenizer that finds stop strings in an answer's tokens, or None if the server must find them."""

    def encode_request(
        self, instructions: str, input: str, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        """Returns the token ids of a prompt; raises jinja2's TemplateError if the template refuses the conversation."""

    @property
    def long_prompts(self) -> IsolatedCalls | None:
        """Returns the processes that encode long prompts (`prompt_encoding`), or None if a server encodes them."""

    @property
    def formats(self) -> FormatChecks:
        """Returns the checks of formats, with the model's tokens or, if only a server knows them, with bytes."""

    @property
    def takes_tools(self) -> bool:
        """Returns whether the model's chat template knows definitions of tools."""

    @property
    def template_variables(self) -> frozenset[str] | None:
        """Returns the variables that the chat template knows beside the chat's own, or None if only a server knows."""

    @property
    def reads_clock(self) -> bool:
        """Returns whether the chat template shows the time, so that a prompt depends on when it is rendered."""

    @property
    def generation(self) -> GenerationDefaults:
        """Returns the defaults in the model's generation_config.json, or none if only a server has that file."""

    @property
    def thinks(self) -> bool:
        """Returns whether the chat template has tags of thinking."""

    def answer_form(self, prompt_ids: Sequence[int], begun: str = "") -> AnswerForm:
        """Returns the form of the answer to this prompt; `begun` is the message that it continues."""

    @property
    def context_tokens(self) -> int | None:
        """Returns the most tokens that a prompt and its answer may have together, or None if that is not known here."""

    @property
    def vocabulary_size(self) -> int | None:
        """Returns the number below which all token ids are, or None if only a server knows it."""

    def encode_messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        """Returns the token ids of a chat with tools; raises jinja2's TemplateError if the template refuses it."""

    def encode_raw(self, text: str) -> list[int]:
        """Returns the token ids of a prompt without the chat template; special tokens in it are those of the model."""

    def count(self, text: str) -> int:
        """Returns the number of tokens in a text, without the chat template."""

    def decode(self, ids: Sequence[int], *, continues: bool = False) -> str:
        """Returns an answer's text without special tokens, and without NUL.

        If the answer `continues` a text, it keeps a leading blank, which some tokenizers drop.
        """

    def token_bytes(self, id: int) -> bytes:
        """Returns the bytes that this token adds to an answer."""
