"""A request's prompt before its encoding; the web process counts with it what the worker prefills. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.request_tokens import RequestTokens, Turn

Message = Mapping[str, Any]  # as chat templates take it: role, content, tool_calls, tool_call_id, name


@dataclass(frozen=True, slots=True)
class ModelPrompt:
    """Either instructions and input, or a conversation, or with `raw` or `ids` what the model reads as it is.

    `messages` has the conversation's messages; with `tools`, definitions of functions, it has all of them.
    """

    instructions: str
    input: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Message, ...] = ()
    raw: bool = False
    ids: tuple[int, ...] = ()

    @property
    def uses_tools(self) -> bool:
        """Whether it has definitions, calls or results of tools."""
        return bool(self.tools) or any(
            message["role"] == "tool" or message.get("tool_calls") for message in self.messages
        )

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The conversation as (role, content)."""
        return tuple((message["role"], message["content"]) for message in self.messages)

    def encode(self, tokens: RequestTokens) -> list[int]:
        """Its token ids; raises jinja2's TemplateError if the model's chat template refuses it."""
        if self.ids:
            return list(self.ids)
        if self.raw:
            return tokens.encode_raw(self.input)
        if self.uses_tools:
            return tokens.encode_messages(self.messages, self.tools)
        return tokens.encode_request(self.instructions, self.input, self.turns)
