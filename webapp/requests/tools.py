"""Functions that an answer may call: definitions, the choice among them, calls and results in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from inference.answer_parts import read_answer
from inference.tool_calls import ToolCall, text_parameters
from models.client_requests import RequestView
from request_body import RequestBody, StoredCall, StoredTool, StoredToolChoice, readable_body
from webapp.requests.field_types import TEXT_OR_LIST, Body, HistoryBody, Text
from webapp.requests.options import JsonSchema

MOST_TOOLS = 128  # OpenAI's bound
MOST_PARTS = 1000  # parts of one message's content, and of one tool's result; not tuned
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
        given = self.model_dump(exclude_none=True, exclude={"type"})
        return StoredTool.model_validate({"parameters": NO_PARAMETERS, **given})


class ChatTool(Body):
    """A function as a chat defines it."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionTool(FunctionDefinition):
    """A function as a response defines it."""

    type: Literal["function"]


HostedKind = Literal["web_search", "web_search_preview", "namespace", "image_generation", "tool_search"]


class HostedTool(BaseModel):
    """A tool that OpenAI's service runs by itself; agents offer it to every model."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: HostedKind


def kind_of_tool(value: Any) -> str | None:
    """Returns the tag of the type that a tool is validated as."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "<function>" if kind == "function" else "<hosted>" if kind in get_args(HostedKind) else None


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[HostedTool, Tag("<hosted>")],
    Discriminator(
        kind_of_tool,
        custom_error_type="tool",
        custom_error_message=f"must be of type function (or {', '.join(get_args(HostedKind))}, which are left out)",
    ),
]


def functions_of(tools: Sequence[FunctionTool | HostedTool] | None) -> tuple[StoredTool, ...]:
    """Returns the functions among a response's tools as the request's row stores them."""
    return tuple(tool.stored for tool in tools or () if isinstance(tool, FunctionTool))


def hosted_kinds(tools: Sequence[FunctionTool | HostedTool] | None) -> tuple[str, ...]:
    """Returns the types of the tools that are left out, each once."""
    return tuple(sorted({tool.type for tool in tools or () if isinstance(tool, HostedTool)}))


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
    """Returns the tag of the type that a choice is validated as."""
    return "<text>" if isinstance(value, str) else "<object>" if not isinstance(value, list | int | float) else None


CHOICE = Discriminator(
    text_or_object, custom_error_type="tool_choice", custom_error_message="must be a text or an object"
)
Mode = Annotated[Literal["none", "auto", "required"], Tag("<text>")]
ChatToolChoice = Annotated[Mode | Annotated[ChatFunctionChoice, Tag("<object>")], CHOICE]
ResponseToolChoice = Annotated[Mode | Annotated[ResponseFunctionChoice, Tag("<object>")], CHOICE]


class CallOfFunction(HistoryBody):
    """A function with the arguments of a call."""

    name: ToolName
    arguments: Arguments


class ChatToolCall(HistoryBody):
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
    """Returns a body's fields for these functions; without functions, any choice but a required one is left out."""
    if not tools and choice.mode != "required":
        choice, parallel_tool_calls = StoredToolChoice(), None
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel_tool_calls}


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class FunctionCallItem(HistoryBody):
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


class OutputPart(HistoryBody):
    """A piece of a result's text."""

    type: Literal["input_text", "output_text"]
    text: Text


class ReasoningText(HistoryBody):
    """A piece of an earlier answer's thinking."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(HistoryBody):
    """An earlier answer's thinking, sent back as it came; it belongs to the answer or the calls that follow it."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MOST_PARTS)] | None = None
    summary: Annotated[list[ReasoningText], Field(max_length=MOST_PARTS)] | None = None
    id: Text | None = None
    status: ItemStatus | None = None
    encrypted_content: Text | None = Field(default=None, description="Accepted, not used: only OpenAI can read it")

    @property
    def text(self) -> str:
        """Returns the thoughts as one string."""
        return "".join(part.text for part in self.content or self.summary or ())


class FunctionOutputItem(HistoryBody):
    """The result of a call of a function."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Annotated[
        Annotated[Text, Tag("<text>")] | Annotated[list[OutputPart], Field(max_length=MOST_PARTS), Tag("<list>")],
        TEXT_OR_LIST,
    ]
    id: Text | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        """Returns the result as one string."""
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


class ItemReference(HistoryBody):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"]
    id: Annotated[Text, Field(max_length=128)]


ITEM_KINDS = ("message", "reasoning", "function_call", "function_call_output", "item_reference")


def kind_of_item(value: Any) -> str | None:
    """Returns the tag of the type that an item is validated as; an item without a type is a message."""
    kind = value.get("type") or "message" if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in ITEM_KINDS else None


ITEM = Discriminator(
    kind_of_item,
    custom_error_type="item",
    custom_error_message=f"must be of type {', '.join(ITEM_KINDS[:-1])} or {ITEM_KINDS[-1]}",
)


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """An answer's thinking, text and calls; `text` is empty if it has only the others."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, ToolCall], ...] = ()  # each with the id that its result names


def answer_parts(view: RequestView) -> AnswerParts:
    """Returns the parts of an answer."""
    return parts_of(view.request.output_text or "", readable_body(view.request.body), view.request.id)


def parts_of(text: str, body: RequestBody, request_id: str) -> AnswerParts:
    """Returns the parts of a text that answers the request with this body and id."""
    read = read_answer(text, body.answer_form, text_parameters(body.offered_tools))
    calls = read.calls if body.parallel_tool_calls else read.calls[:1]
    own = request_id.removeprefix("resp_")[:24]
    named = tuple((f"call_{own}{number:03d}", call) for number, call in enumerate(calls))
    return AnswerParts(read.text, read.reasoning, named)
