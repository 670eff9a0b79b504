"""A request's prompt before it is encoded; the web process and the worker encode it alike. Imports no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from pydantic_core import from_json, to_json

from inference.prompts.request_tokens import ChatEnding, RequestTokens, Turn, thinking_variables
from request_body import PLAIN, AnswerForm, RequestBody, StoredCall, StoredTool, StoredTurn

NOTHING_ASKED = RequestBody()
# A prompt of more characters is encoded in a process of its own, because a tokenizer holds Python's lock: for 1.3 µs a
# character of English, and for 9 µs an emoji. A process of its own takes some 3 ms, as this many characters do; twenty
# clients that send emojis all the time delay another call by less than half a second.
LONG_CHARACTERS = 2_500
ENCODED_WITHIN_S = 1.0  # CPU seconds that encoding may take, and CHARACTER_S for each character; not tuned otherwise
CHARACTER_S = 1.5e-6


@dataclass(frozen=True, slots=True)
class ModelPrompt:
    """The instructions and the input of a request; a conversation, functions or a raw prompt in `body` replace them."""

    instructions: str
    input: str
    body: RequestBody = NOTHING_ASKED

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The conversation as (role, content)."""
        return tuple((message.role, message.content) for message in self.body.messages)

    @property
    def characters(self) -> int:
        """Returns the number of characters in all texts, definitions of functions and earlier thinking included."""
        tools = (len(tool.description or "") + len(tool.parameters or "") for tool in self.body.offered_tools)
        thoughts = (len(turn.reasoning or "") for turn in self.body.messages)
        return len(self.instructions) + len(self.input) + sum(tools) + sum(thoughts)

    def encode(self, tokens: RequestTokens, most_tokens: int | None = None, caller: str = "") -> list[int]:
        """Returns the prompt's token ids; if there are more than `most_tokens`, it may return only the first of them.

        Raises jinja2's TemplateError if the model's chat template refuses it, and TooExpensive. Long prompts of one
        caller are encoded one at a time.
        """
        if self.body.prompt_ids:
            return list(self.body.prompt_ids)
        characters = self.characters
        if characters <= LONG_CHARACTERS or tokens.long_prompts is None:
            return self.encode_here(tokens)
        asked = to_json([self.instructions, self.input, self.body.model_dump(mode="json", by_alias=True), most_tokens])
        found = from_json(tokens.long_prompts.call(asked.decode(), ENCODED_WITHIN_S + CHARACTER_S * characters, caller))
        if isinstance(found, str):
            raise TemplateError(found)
        ids: list[int] = found
        return ids

    def answer_form(self, tokens: RequestTokens, ids: Sequence[int]) -> AnswerForm:
        """Returns the form of the answer to this prompt, whose tokens are `ids`."""
        if self.body.raw:
            return PLAIN
        return tokens.answer_form(ids, self.body.messages[-1].content if self.body.continues else "")

    def encode_here(self, tokens: RequestTokens) -> list[int]:
        """Returns the prompt's token ids; raises TemplateError."""
        if self.body.raw:
            return tokens.encode_raw(self.input)
        told = thinking_variables(self.body.reasoning) | self.body.template_variables
        ending = ChatEnding(self.body.continues, told, self.body.rendered_at)
        if self.body.uses_tools:
            messages = [template_message(message) for message in self.body.messages]
            tools = [template_tool(tool) for tool in self.body.offered_tools]
            return tokens.encode_messages(messages, tools, ending)
        return tokens.encode_request(self.instructions, self.input, self.turns, ending)


def template_message(turn: StoredTurn) -> dict[str, Any]:
    """Returns a message in the form that chat templates take, with the arguments of calls as objects."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in turn.tool_calls
        ]
    if turn.reasoning:
        message |= {"reasoning_content": turn.reasoning, "thinking": turn.reasoning}  # gpt-oss reads the second name
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    return message


def template_tool(tool: StoredTool) -> dict[str, Any]:
    """Returns a function's definition in the form that chat templates take."""
    function = tool.model_dump(exclude={"strict", "custom"}, exclude_none=True)
    if tool.parameters is not None:
        function["parameters"] = json.loads(tool.parameters)
    return {"type": "function", "function": function}


def _arguments(call: StoredCall) -> Any:
    try:
        found = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return found if isinstance(found, dict) else call.arguments
