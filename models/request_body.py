"""What `StoredRequest.body` holds, read from rows that another release or another program may have written."""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError


class UnreadableBody(ValueError):
    """The stored body has another form than this release writes; `where` is the first field that differs."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"The stored request cannot be read: its body is malformed{where and f' at {where}'}.")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class StoredSampling(_Part):
    """How the client wants tokens sampled; null where it did not say."""

    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    top_k: int | None = None
    seed: int | None = None
    min_p: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None


class StoredCall(_Part):
    """A call of a function in an earlier answer; `arguments` is JSON as text."""

    id: str
    name: str
    arguments: str


class StoredTurn(_Part):
    """One message of a conversation."""

    role: str
    content: str
    tool_calls: tuple[StoredCall, ...] = ()
    tool_call_id: str | None = None  # of the call whose result it is


class StoredTool(_Part):
    """A function that an answer may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class StoredToolChoice(_Part):
    """Which functions an answer must call; `function` is the one that it must."""

    mode: Literal["none", "auto", "required"] = "auto"
    function: str | None = None


class StoredFormat(_Part):
    """What form the answer has; `json_schema` has a schema, `json_object` none."""

    type: Literal["json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @property
    def schema_text(self) -> str | None:
        """The schema as JSON; None if any object will do."""
        return None if self.schema_ is None else json.dumps(self.schema_)


class RequestBody(_Part):
    """A request's body; what is not stored has the value that asks for nothing."""

    metadata: dict[str, str] = {}
    background: bool = True
    stream: bool = False  # somebody reads the answer while it is generated
    sampling: StoredSampling = StoredSampling()
    stop: tuple[str, ...] = ()
    messages: tuple[StoredTurn, ...] = ()
    format: StoredFormat | None = None
    top_logprobs: int | None = None
    raw: bool = False  # the input is what the model reads, without its chat template
    prompt_ids: tuple[int, ...] = ()  # and these are its tokens, where the client sent tokens
    echo: bool = False  # the client wants the prompt in front of the answer
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    tools: tuple[StoredTool, ...] = ()
    tool_choice: StoredToolChoice = StoredToolChoice()
    parallel_tool_calls: bool = True
    store: bool = True  # False: it is deleted once it was answered
    instructions: str | None = None  # as the client gave them, where its input began with system messages
    previous_response_id: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"

    @property
    def offered_tools(self) -> tuple[StoredTool, ...]:
        """The functions that the model is told of."""
        return () if self.tool_choice.mode == "none" else self.tools

    @property
    def template_messages(self) -> tuple[dict[str, Any], ...]:
        """The conversation as chat templates take it."""
        return tuple(map(template_message, self.messages))

    @property
    def template_tools(self) -> tuple[dict[str, Any], ...]:
        """The offered functions as chat templates take them."""
        return tuple(
            {"type": "function", "function": tool.model_dump(exclude={"strict"}, exclude_none=True)}
            for tool in self.offered_tools
        )


def template_message(turn: StoredTurn) -> dict[str, Any]:
    """A message as chat templates take it; the arguments of calls are objects there."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in turn.tool_calls
        ]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    return message


def _arguments(call: StoredCall) -> Any:
    try:
        found = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return found if isinstance(found, dict) else call.arguments


def read_body(stored: object) -> RequestBody:
    """The body of a stored row; raises UnreadableBody."""
    try:
        return RequestBody.model_validate(stored)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UnreadableBody(where) from error
