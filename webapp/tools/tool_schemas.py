"""Functions as clients define them, choose among them, and send back what was called: in chats and in responses."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from request_body import StoredCall, StoredTool, StoredToolChoice
from webapp.field_types import Body, Text
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
        """As the request's row keeps it."""
        parameters = NO_PARAMETERS if self.parameters is None else self.parameters
        return StoredTool(name=self.name, description=self.description, parameters=parameters, strict=self.strict)


class ChatTool(Body):
    """A function as a chat defines it."""

    type: Literal["function"]
    function: FunctionDefinition


class OfFunctions(Body):
    """That a tool is a function; first of its fields, so that an error about another kind names it."""

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
    """The tag of the union's branch that a choice belongs to."""
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
        """As the request's row keeps it."""
        return StoredCall(id=self.id, name=self.function.name, arguments=self.function.arguments)


def stored_choice(choice: str | ChatFunctionChoice | ResponseFunctionChoice | None) -> StoredToolChoice:
    """What a request's row keeps of the choice."""
    if isinstance(choice, ChatFunctionChoice):
        return StoredToolChoice(mode="required", function=choice.function.name)
    if isinstance(choice, ResponseFunctionChoice):
        return StoredToolChoice(mode="required", function=choice.name)
    return StoredToolChoice.model_validate({"mode": choice or "auto"})


def function_fields(
    tools: Sequence[StoredTool], choice: StoredToolChoice, parallel_tool_calls: bool | None
) -> dict[str, Any]:
    """Returns the fields of a RequestBody that a choice among these functions sets; without any they ask for nothing."""
    if not tools and choice.mode != "required":
        choice, parallel_tool_calls = StoredToolChoice(), None
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel_tool_calls}
