"""What turns requests into token ids and answers into text: our own tokenizer, or that of a server."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from inference.answer_text import Detokenizer

Turn = tuple[str, str]  # role, content


class TokenizerAway(Exception):
    """the server whose tokenizer is used does not answer ({reason}); nothing can be counted until it does"""

    def __init__(self, reason: str) -> None:
        super().__init__((type(self).__doc__ or "").format(reason=reason))


class RequestTokens(Protocol):
    """One model's chat template and tokenizer; every method raises TokenizerAway where a server has them."""

    @property
    def name(self) -> str:
        """The model's name, unless the operator gives it another."""

    @property
    def detokenizer(self) -> Detokenizer | None:
        """What finds stop strings in an answer's tokens; None where the server must find them."""

    def encode_request(self, instructions: str, input: str, turns: Sequence[Turn]) -> list[int]:
        """Token ids of a request's prompt; raises jinja2's TemplateError if the template refuses the conversation."""

    @property
    def takes_tools(self) -> bool:
        """Whether the model's chat template knows definitions of tools."""

    @property
    def vocabulary_size(self) -> int | None:
        """Token ids are below this number; None where only a server knows it."""

    def encode_messages(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation with tools; raises jinja2's TemplateError if the template refuses it."""

    def encode_raw(self, text: str) -> list[int]:
        """Token ids of a prompt as it is, without the chat template; special tokens in it are those of the model."""

    def count(self, text: str) -> int:
        """Number of tokens in a text, without the chat template."""

    def decode(self, ids: Sequence[int], *, continues: bool = False) -> str:
        """The text of an answer without special tokens, and without NUL.

        One that `continues` a text keeps the blank in front that some tokenizers drop.
        """

    def token_bytes(self, id: int) -> bytes:
        """What this token adds to an answer."""
