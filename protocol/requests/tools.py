"""Functions and custom tools that an answer may call: their definitions, and the choice among them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import to_json

from protocol.client_errors import InvalidRequest
from protocol.field_types import Body, Pattern, Text, by_type, kind_of
from protocol.requests.options import JsonSchema
from request_body import CUSTOM_INPUT, StoredCall, StoredTool, StoredToolChoice

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


def refuse_lark(value: str) -> str:
    """Returns the syntax of a grammar; raises ValueError for Lark's, because a call is JSON around the text."""
    if value == "lark":
        raise ValueError("a call cannot be held to a grammar in Lark's form: give a regex, or describe it in a text")
    return value


Syntax = Annotated[Literal["regex", "lark"], AfterValidator(refuse_lark), WithJsonSchema({"const": "regex"})]


class Grammar(Body):
    """What the text of a call must match."""

    syntax: Syntax
    definition: Pattern


class CustomFormat(Body):
    """Any text, or one that matches a grammar; a chat's grammar is an object of its own."""

    type: Literal["text", "grammar"] = "text"
    syntax: Syntax | None = Field(default=None, description="As in `grammar`")
    definition: Pattern | None = None
    grammar: Grammar | None = None

    @property
    def pattern(self) -> str | None:
        """Returns the regular expression of the text; None: any text."""
        return self.grammar.definition if self.grammar else self.definition

    @model_validator(mode="after")
    def refuse_half_a_grammar(self) -> Self:
        """Refuses a grammar without its definition, and a definition of any text."""
        if (self.type == "grammar") != (self.pattern is not None):
            raise ValueError("a format of type grammar, and no other, has a syntax and a definition")
        return self


class CustomDefinition(Body):
    """A tool that an answer calls with a text in place of JSON."""

    name: ToolName
    description: Text | None = None
    format: CustomFormat = CustomFormat()

    @property
    def stored(self) -> StoredTool:
        """Returns the tool as the request's row stores it: as a function of one text."""
        text = {"type": "string"} | ({"pattern": f"^(?:{self.format.pattern})$"} if self.format.pattern else {})
        parameters = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
        given = {"name": self.name, "description": self.description, "parameters": parameters, "custom": True}
        return StoredTool.model_validate(given)


class ChatFunction(Body):
    """A function as a chat defines it."""

    type: Literal["function"]
    function: FunctionDefinition


class ChatCustomTool(Body):
    """A custom tool as a chat defines it."""

    type: Literal["custom"]
    custom: CustomDefinition


FUNCTION_OR_CUSTOM = by_type("tool", "must be of type function or custom", default="function")
ChatTool = Annotated[
    Annotated[ChatFunction, Tag("<function>")] | Annotated[ChatCustomTool, Tag("<custom>")], FUNCTION_OR_CUSTOM
]


class CustomTool(CustomDefinition):
    """A custom tool as a response defines it."""

    type: Literal["custom"]


class FunctionTool(FunctionDefinition):
    """A function as a response defines it."""

    type: Literal["function"]


HostedKind = Literal[
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "computer",
    "computer_use_preview",
    "local_shell",
    "shell",
    "apply_patch",
    "namespace",
    "tool_search",
]


ANTHROPIC_KIND = r"^([a-z_]+_20[0-9]{6}|mcp_toolset)$"  # such as web_search_20250305


class HostedTool(BaseModel):
    """A tool that OpenAI's service runs by itself; agents offer it to every model."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: HostedKind


class AnthropicTool(BaseModel):
    """A tool that Anthropic defines, and mostly runs: its models know it without a schema."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Annotated[Text, Field(max_length=64, pattern=ANTHROPIC_KIND)]


def kind_of_tool(value: Any) -> str | None:
    """Returns the tag of the type that a tool is validated as."""
    kind = kind_of(value)
    return f"<{kind}>" if kind in ("function", "custom") else "<hosted>" if kind in get_args(HostedKind) else None


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[HostedTool, Tag("<hosted>")],
    Discriminator(
        kind_of_tool,
        custom_error_type="tool",
        custom_error_message=(
            f"must be of type function or custom (or {', '.join(get_args(HostedKind))}, which are left out)"
        ),
    ),
]


def chat_functions(tools: Sequence[ChatFunction | ChatCustomTool] | None) -> tuple[StoredTool, ...]:
    """Returns a chat's tools as the request's row stores them."""
    return tuple((one.function if isinstance(one, ChatFunction) else one.custom).stored for one in tools or ())


def functions_of(tools: Sequence[FunctionTool | CustomTool | HostedTool] | None) -> tuple[StoredTool, ...]:
    """Returns the functions and custom tools among a response's tools as the request's row stores them."""
    return tuple(tool.stored for tool in tools or () if not isinstance(tool, HostedTool))


def dropped_kinds(tools: Sequence[object] | None, refused: bool) -> tuple[str, ...]:
    """Returns the types of the tools that are left out, each once; if they are `refused`, raises InvalidRequest."""
    dropped = sorted({tool.type for tool in tools or () if isinstance(tool, HostedTool | AnthropicTool)})
    if dropped and refused:
        raise InvalidRequest(f"No tool of the types {', '.join(dropped)} runs here: leave them out.", param="tools")
    return tuple(dropped)


class NamedFunction(Body):
    """A function by its name."""

    name: ToolName


class ChatFunctionChoice(Body):
    """The function that a chat's answer must call."""

    type: Literal["function"]
    function: NamedFunction

    @property
    def name(self) -> str:
        """Returns its name."""
        return self.function.name


class ChatCustomChoice(Body):
    """The custom tool that a chat's answer must call."""

    type: Literal["custom"]
    custom: NamedFunction

    @property
    def name(self) -> str:
        """Returns its name."""
        return self.custom.name


ChatNamedChoice = Annotated[
    Annotated[ChatFunctionChoice, Tag("<function>")] | Annotated[ChatCustomChoice, Tag("<custom>")], FUNCTION_OR_CUSTOM
]


class ResponseFunctionChoice(NamedFunction):
    """The function or the custom tool that a response must call."""

    type: Literal["function", "custom"]


AllowedMode = Literal["auto", "required"]


class AllowedFunctions(Body):
    """The functions that a chat's answer may call."""

    mode: AllowedMode
    tools: Annotated[list[ChatNamedChoice], Field(min_length=1, max_length=MOST_TOOLS)]


class ChatAllowedTools(Body):
    """Some of a chat's tools; the answer is as if the others had not been sent."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


class ResponseAllowedTools(Body):
    """Some of a response's tools; the answer is as if the others had not been sent."""

    type: Literal["allowed_tools"]
    mode: AllowedMode
    tools: Annotated[list[ResponseFunctionChoice], Field(min_length=1, max_length=MOST_TOOLS)]


def kind_of_choice(value: Any) -> str | None:
    """Returns the tag of the type that a choice is validated as."""
    if isinstance(value, str):
        return "<text>"
    if kind_of(value) == "allowed_tools":
        return "<allowed>"
    return None if isinstance(value, list | int | float) else "<object>"


CHOICE = Discriminator(
    kind_of_choice, custom_error_type="tool_choice", custom_error_message="must be a text or an object"
)
Mode = Annotated[Literal["none", "auto", "required", "any"], Tag("<text>")]  # other APIs say `any` for `required`
ChatToolChoice = Annotated[
    Mode | Annotated[ChatNamedChoice, Tag("<object>")] | Annotated[ChatAllowedTools, Tag("<allowed>")], CHOICE
]
ResponseToolChoice = Annotated[
    Mode | Annotated[ResponseFunctionChoice, Tag("<object>")] | Annotated[ResponseAllowedTools, Tag("<allowed>")],
    CHOICE,
]


NamedChoice = ChatFunctionChoice | ChatCustomChoice | ResponseFunctionChoice
Choice = str | NamedChoice | ChatAllowedTools | ResponseAllowedTools | None


def allowed_functions(tools: tuple[StoredTool, ...], choice: Choice) -> tuple[StoredTool, ...]:
    """Returns the tools that the choice allows; raises InvalidRequest if it names another one."""
    if isinstance(choice, ChatAllowedTools):
        names = {tool.name for tool in choice.allowed_tools.tools}
    elif isinstance(choice, ResponseAllowedTools):
        names = {tool.name for tool in choice.tools}
    else:
        return tools
    for name in sorted(names - {tool.name for tool in tools}):
        raise InvalidRequest(f"Invalid 'tool_choice': no function '{name}' is among the tools.", param="tool_choice")
    return tuple(tool for tool in tools if tool.name in names)


def stored_choice(choice: Choice) -> StoredToolChoice:
    """Returns the choice as the request's row stores it."""
    if isinstance(choice, ChatAllowedTools | ResponseAllowedTools):
        mode = choice.allowed_tools.mode if isinstance(choice, ChatAllowedTools) else choice.mode
        return StoredToolChoice(mode=mode)
    if isinstance(choice, NamedChoice):
        return StoredToolChoice(mode="required", function=choice.name)
    return StoredToolChoice.model_validate({"mode": "required" if choice == "any" else choice or "auto"})


def function_fields(
    tools: Sequence[StoredTool], choice: StoredToolChoice, parallel_tool_calls: bool | None
) -> dict[str, Any]:
    """Returns a body's fields for these functions; without functions, any choice but a required one is left out."""
    if not tools and choice.mode != "required":
        choice, parallel_tool_calls = StoredToolChoice(), None
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel_tool_calls}


def stored_custom_call(id: str, name: str, text: str) -> StoredCall:
    """Returns a call of a custom tool as the request's row stores it: as the call of a function of one text."""
    return StoredCall(id=id, name=name, arguments=to_json({CUSTOM_INPUT: text}).decode(), custom=True)
