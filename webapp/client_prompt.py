"""From what a client sends to the stored prompt: instructions, user input, conversation, application."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.model_prompt import ModelPrompt
from models.request_body import RequestBody, StoredCall, StoredTool, StoredTurn

DIGEST_CHARACTERS = 12  # hex digits, 48 bits: two of 10,000 distinct instructions collide with a chance of 2e-7


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation; an answer may have called functions, whose results have `tool_call_id`."""

    role: str
    content: str
    tool_calls: tuple[StoredCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def stored(self) -> dict[str, Any]:
        """As the request's row keeps it."""
        turn: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            turn["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            turn["tool_call_id"] = self.tool_call_id
        return turn

    @property
    def transcript(self) -> str:
        """What it says, in one text."""
        return "\n".join([self.content, *(f"{call.name}({call.arguments})" for call in self.tool_calls)]).strip()


@dataclass(frozen=True, slots=True)
class ClientPrompt:
    """Instructions and user input; for a conversation `messages` has all its turns and `input` their transcript.

    `tools` are the functions that the model is told of. With `raw`, the model reads the input as it is; `ids` are its
    tokens if the client sent tokens.
    """

    instructions: str
    input: str
    messages: tuple[Turn, ...] = ()
    tools: tuple[StoredTool, ...] = ()
    raw: bool = False
    ids: tuple[int, ...] = ()

    @property
    def stored_messages(self) -> list[dict[str, Any]]:
        """The turns as the request's row keeps them in `body`."""
        return [turn.stored for turn in self.messages]

    @property
    def for_model(self) -> ModelPrompt:
        """What the worker will encode."""
        if not self.messages:
            return ModelPrompt(self.instructions, self.input, raw=self.raw, ids=self.ids)
        body = RequestBody(messages=tuple(map(StoredTurn.model_validate, self.stored_messages)), tools=self.tools)
        return ModelPrompt(
            self.instructions, self.input, body.template_messages, body.template_tools, raw=self.raw, ids=self.ids
        )


def prompt_of_turns(instructions: str | None, turns: Sequence[Turn], tools: Sequence[StoredTool] = ()) -> ClientPrompt:
    """System messages that open a conversation join the instructions; one user message alone is the user input."""
    opening = 0
    while turns[opening].role in ("system", "developer"):
        opening += 1
    system = "\n\n".join(part for part in (instructions, *(turn.content for turn in turns[:opening])) if part)
    later = turns[opening:]
    if len(later) == 1 and later[0].role == "user" and not tools:
        return ClientPrompt(system, later[0].content)
    conversation = tuple(Turn("system", turn.content) if turn.role == "developer" else turn for turn in later)
    transcript = "\n\n".join(f"{turn.role}: {turn.transcript}" for turn in conversation)
    messages = (Turn("system", system), *conversation) if system else conversation
    return ClientPrompt(system, transcript, messages, tuple(tools))


def application_name(metadata: Mapping[str, str], instructions: str) -> str:
    """The client's own name for this kind of request, else a digest of the instructions, which the kind shares."""
    return metadata.get("application") or hashlib.sha256(instructions.encode()).hexdigest()[:DIGEST_CHARACTERS]
