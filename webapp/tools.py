"""Functions that an answer may call: definitions, the choice among them, calls and results in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from inference.tool_calls import ToolCall, read_tool_calls
from models.client_requests import RequestView
from request_body import RequestBody, StoredCall, StoredTool, StoredToolChoice, readable_body
from webapp.field_types import TEXT_OR_LIST, Body, Text
from webapp.options import JsonSchema

MOST_TOOLS = 128  # OpenAI's bound
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

ToolName = Annotated[Text, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
CallId = Annotated[Text, Field(min_length=1, max_length=128)]
Arguments = Annotated[Text, Field(description="A JSON object as text")]


class FunctionDefinition(Body):
    """A function that an answer may call."""

    name: ToolName
    description: Text | None = None
    parameters: JsonSchema | None = Field(default=None, description="A JSON Schema of its arguments")
    strict: bool | None = Field(default=None, description="The schema is kept to where a call is required")

    @property
    def stored(self) -> StoredTool:
        """Returns the function as the request's row stores it."""
        return StoredTool.model_validate({"parameters": NO_PARAMETERS, **self.model_dump(exclude_none=True)})


class ChatTool(Body):
    """A function as a chat defines it."""

    type: Literal["function"]
    function: FunctionDefinition


class OfFunctions(Body):
    """The type of a tool, in a base class so that it is checked first and an error about another type names it."""

    type: Literal["function"]


class ResponseTool(FunctionDefinition, OfFunctions):
    """A function as a response defines it."""


class NamedFunction(Body):
    """A function by its name."""

    name: ToolName


class ChatFunctionChoice(Body):
    """The function that a chat's answer must call."""

    type: Literal["function"]
    function: NamedFunction


class ResponseFunctionChoice(NamedFunction):
    """The function that a response must call."""

    type: Literal["function"]


def text_or_object(value: object) -> str | None:
    """Returns the tag of the union's branch that a choice belongs to."""
    return "<text>" if isinstance(value, str) else "<object>" if not isinstance(value, list | int | float) else None


CHOICE = Discriminator(
    text_or_object, custom_error_type="tool_choice", custom_error_message="must be a text or an object"
)
Mode = Annotated[Literal["none", "auto", "required"], Tag("<text>")]
ChatToolChoice = Annotated[Mode | Annotated[ChatFunctionChoice, Tag("<object>")], CHOICE]
ResponseToolChoice = Annotated[Mode | Annotated[ResponseFunctionChoice, Tag("<object>")], CHOICE]


class CallOfFunction(Body):
    """A function with the arguments of a call."""

    name: ToolName
    arguments: Arguments


class ChatToolCall(Body):
    """A call in an earlier answer of a chat, sent back as it came."""

    id: CallId
    type: Literal["function"] = "function"
    function: CallOfFunction
    index: int | None = Field(default=None, description="Accepted as a stream carries it, not used")

    @property
    def stored(self) -> StoredCall:
        """Returns the call as the request's row stores it."""
        return StoredCall(id=self.id, name=self.function.name, arguments=self.function.arguments)


def stored_choice(choice: str | ChatFunctionChoice | ResponseFunctionChoice | None) -> StoredToolChoice:
    """Returns the choice as the request's row stores it."""
    if isinstance(choice, ChatFunctionChoice):
        return StoredToolChoice(mode="required", function=choice.function.name)
    if isinstance(choice, ResponseFunctionChoice):
        return StoredToolChoice(mode="required", function=choice.name)
    return StoredToolChoice.model_validate({"mode": choice or "auto"})


def function_fields(
    tools: Sequence[StoredTool], choice: StoredToolChoice, parallel_tool_calls: bool | None
) -> dict[str, Any]:
    """Returns a body's fields for these functions; without functions, only a required choice asks for something."""
    if not tools and choice.mode != "required":
        choice, parallel_tool_calls = StoredToolChoice(), None
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel_tool_calls}


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class FunctionCallItem(Body):
    """A call in an earlier answer."""

    type: Literal["function_call"]
    call_id: CallId
    name: ToolName
    arguments: Arguments
    id: Text | None = None
    status: ItemStatus | None = None

    @property
    def stored(self) -> StoredCall:
        """Returns the call as the request's row stores it."""
        return StoredCall(id=self.call_id, name=self.name, arguments=self.arguments)


class OutputPart(Body):
    """A piece of a result's text."""

    type: Literal["input_text", "output_text"]
    text: Text


class FunctionOutputItem(Body):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Annotated[Annotated[Text, Tag("<text>")] | Annotated[list[OutputPart], Tag("<list>")], TEXT_OR_LIST]
    id: Text | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        """Returns the result as one string."""
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


def kind_of_item(value: Any) -> str | None:
    """Returns the tag of the union's branch that an item belongs to; an item without a type is a message."""
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in ("message", "function_call", "function_call_output") else None


ITEM = Discriminator(
    kind_of_item,
    custom_error_type="item",
    custom_error_message="must be of type message, function_call or function_call_output",
)


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """An answer's text and its calls; `text` is empty if it has only calls."""

    text: str
    calls: tuple[tuple[str, ToolCall], ...] = ()  # each with the id that its result names


def answer_parts(view: RequestView) -> AnswerParts:
    """Returns the parts of an answer; if its request had no tools, it is all text."""
    return parts_of(view.request.output_text or "", readable_body(view.request.body), view.request.id)


def parts_of(text: str, body: RequestBody, request_id: str) -> AnswerParts:
    """Returns the parts of a text that answers the request with this body and id."""
    if not body.offered_tools:
        return AnswerParts(text)
    rest, calls = read_tool_calls(text, {tool.name for tool in body.offered_tools})
    if not body.parallel_tool_calls:
        calls = calls[:1]
    own = request_id.removeprefix("resp_")[:24]
    return AnswerParts(rest, tuple((f"call_{own}{number:03d}", call) for number, call in enumerate(calls)))
