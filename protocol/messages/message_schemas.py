"""Bodies of /v1/messages and its count_tokens: Anthropic's fields, and our own in `magnus`."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError, to_json

from protocol.chat.chat_schemas import WaitingFields
from protocol.field_types import TEXT_OR_LIST, Body, HistoryBody, StopString, Text, by_type, kind_of
from protocol.requests.options import JsonSchema
from protocol.requests.tools import ANTHROPIC_KIND, MOST_PARTS, MOST_TOOLS, AnthropicTool, CallId
from request_body import Effort, StoredCall, StoredTool, StoredToolChoice, StoredTurn

# Anthropic's bound, twice OpenAI's: agents put the name of a server before that of its tool
MessageToolName = Annotated[Text, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+$")]
# Anthropic states no bound, OpenAI's is 4. An engine decodes an answer's end once a token, however many there are.
StopSequences = Annotated[list[StopString], Field(max_length=16)]
Unused = Annotated[dict[Text, Any], Field(max_length=64, description="Accepted, not used")]


class TextBlock(HistoryBody):
    """A piece of a message's text."""

    type: Literal["text"]
    text: Text
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(HistoryBody):
    """What an earlier answer thought, sent back as it came."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = Field(default=None, description="Accepted, not used: answers have an empty one")


class RedactedThinkingBlock(HistoryBody):
    """What an earlier answer of Anthropic's thought, encrypted; no model here can read it."""

    type: Literal["redacted_thinking"]
    data: Text = Field(description="Accepted, not used")


class ToolUseBlock(HistoryBody):
    """A call in an earlier answer, sent back as it came."""

    type: Literal["tool_use"]
    id: CallId
    name: MessageToolName
    input: dict[str, Any]
    caller: Unused | None = None

    @property
    def stored(self) -> StoredCall:
        """Returns the call as the request's row stores it."""
        return StoredCall(id=self.id, name=self.name, arguments=to_json(self.input).decode())


def text_of(content: str | list[TextBlock] | None, between: str = "") -> str:
    """Returns a content of texts as one string, with `between` between its blocks."""
    return content if isinstance(content, str) else between.join(block.text for block in content or ())


Texts = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[TextBlock], Field(max_length=MOST_PARTS), Tag("<list>")],
    TEXT_OR_LIST,
]


class ToolResultBlock(HistoryBody):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Texts | None = None
    is_error: bool | None = Field(default=None, description="Accepted, not used: the model reads the content")


BLOCKS_OF = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")],
    by_type("block", "must be of type text, thinking, tool_use or tool_result; images and documents are not read here"),
]


class ConversationMessage(HistoryBody):
    """One message of a conversation; an answer's content can be sent back as it came."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[Text, Tag("<text>")] | Annotated[list[Block], Field(max_length=MOST_PARTS), Tag("<list>")],
        TEXT_OR_LIST,
    ]

    @model_validator(mode="after")
    def refuse_blocks_of_others(self) -> Self:
        """Refuses a call that is not the assistant's, a result that is not the user's, and the like."""
        for block in () if isinstance(self.content, str) else self.content:
            if block.type not in BLOCKS_OF[self.role]:
                raise ValueError(f"a message of the role {self.role} has no block of type {block.type}")
        return self

    @property
    def turns(self) -> list[StoredTurn]:
        """Returns the message as turns of the conversation: each result is a turn of its own."""
        blocks = [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content
        turns = [
            StoredTurn(role="tool", content=text_of(block.content), tool_call_id=block.tool_use_id)
            for block in blocks
            if isinstance(block, ToolResultBlock)
        ]
        text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
        if turns and not text:
            return turns
        thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
        calls = tuple(block.stored for block in blocks if isinstance(block, ToolUseBlock))
        return [*turns, StoredTurn(role=self.role, content=text, tool_calls=calls, reasoning=thought or None)]


class MessageTool(HistoryBody):
    """A function that an answer may call."""

    type: Literal["custom"] = "custom"
    name: MessageToolName
    description: Text | None = None
    input_schema: JsonSchema
    strict: bool | None = Field(default=None, description="The schema is kept to where a call is required")
    defer_loading: Literal[False] | None = None
    eager_input_streaming: bool | None = Field(default=None, description="Accepted, not used")

    @property
    def stored(self) -> StoredTool:
        """Returns the function as the request's row stores it."""
        return StoredTool.model_validate(
            {"name": self.name, "description": self.description, "parameters": self.input_schema, "strict": self.strict}
        )


def custom_or_anthropics(value: Any) -> str | None:
    """Returns the tag of the type that a tool is validated as; without a type it is a function's."""
    kind = kind_of(value, "custom")
    if kind == "custom":
        return "<custom>"
    return "<anthropics>" if isinstance(kind, str) and re.search(ANTHROPIC_KIND, kind) else None


AnyMessageTool = Annotated[
    Annotated[MessageTool, Tag("<custom>")] | Annotated[AnthropicTool, Tag("<anthropics>")],
    Discriminator(
        custom_or_anthropics,
        custom_error_type="tool",
        custom_error_message="must be of type custom (or of Anthropic's, such as web_search_20250305, which do not run "
        "here and are left out)",
    ),
]


class MessageToolChoice(Body):
    """Whether an answer must call a function, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: MessageToolName | None = Field(default=None, description="With type tool: the function")
    disable_parallel_tool_use: bool | None = Field(default=None, description="true: at most one call an answer")

    @model_validator(mode="after")
    def refuse_half_a_choice(self) -> Self:
        """Refuses the type tool without a name, and a name beside another type."""
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a choice of type tool, and no other, has a name")
        return self

    @property
    def stored(self) -> StoredToolChoice:
        """Returns the choice as the request's row stores it."""
        mode = {"any": "required", "tool": "required"}.get(self.type, self.type)
        return StoredToolChoice.model_validate({"mode": mode, "function": self.name})


class Thinking(Body):
    """Whether the model shall think, where its chat template can say so."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="With type enabled: thinking is ended after this many tokens, where an engine can"
    )
    display: Literal["summarized", "omitted"] | None = Field(
        default=None, description="Accepted, not used: the whole thinking is shown"
    )


class JsonOutput(Body):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: JsonSchema = Field(alias="schema", description="At most 64 KiB, nested at most 32 deep")


class OutputConfig(Body):
    """How much the model shall think, and the format of its answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None


class PromptFields(Body):
    """The fields that make the prompt."""

    model: Text = Field(description="Name of the served model, see /v1/models")
    messages: Annotated[list[ConversationMessage], Field(min_length=1, max_length=1000)] = Field(
        description="If the last one is the assistant's, the answer goes on with it"
    )
    system: Texts | None = None
    tools: Annotated[list[AnyMessageTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Unused | None = None
    context_management: Unused | None = None
    speed: Literal["standard"] | None = None
    thread: None = Field(default=None, description="Conversations are not held here")

    @field_validator("thread", mode="before")
    @classmethod
    def refuse_threads(cls, value: object) -> None:
        """Refuses `thread` with the code after which Anthropic's tool runners send the whole conversation."""
        raise PydanticCustomError("thread_unsupported_request", "conversations are not held here, send all messages")

    @field_validator("messages")
    @classmethod
    def refuse_an_empty_question(cls, value: list[ConversationMessage]) -> list[ConversationMessage]:
        """Refuses a conversation of the assistant's messages alone, and one that ends with calls or with nothing."""
        turns = [turn for message in value for turn in message.turns]
        if not any(turn.role == "tool" or (turn.role != "assistant" and turn.content.strip()) for turn in turns):
            raise ValueError("one message must be the user's and not be empty")
        if turns[-1].tool_calls:
            raise ValueError("the results of the last message's calls are missing")
        if turns[-1].role == "assistant" and not turns[-1].content.strip():
            raise ValueError("the last message must not be empty")
        return value

    @property
    def functions(self) -> list[StoredTool]:
        """Returns the functions among the tools as the request's row stores them."""
        return [tool.stored for tool in self.tools or () if isinstance(tool, MessageTool)]

    @property
    def effort(self) -> Effort | None:
        """Returns how much the model shall think; None leaves it to the chat template."""
        kind = self.thinking.type if self.thinking else "adaptive"
        asked = self.output_config.effort if self.output_config else None
        if kind == "disabled":
            return "none"
        return "xhigh" if asked == "max" else asked or ("medium" if kind == "enabled" else None)


class MessageMetadata(HistoryBody):
    """Whose request it is, and of which kind."""

    user_id: Annotated[Text, Field(max_length=512)] | None = Field(default=None, description="Accepted, not used")
    application: Annotated[Text, Field(max_length=512)] | None = Field(
        default=None, description="Names the kind of request"
    )


class CountMessageTokens(PromptFields):
    """POST /v1/messages/count_tokens: what of a message's body makes its prompt."""


class CreateMessage(PromptFields, WaitingFields):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)] = Field(description="Most tokens of the answer, its thinking included")
    stop_sequences: StopSequences | None = Field(default=None, description="The answer ends before the first of these")
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only", "flex", "off_peak", "priority"] | None = Field(
        default=None, description="auto and standard_only: as any request; flex, off_peak and priority: as in chats"
    )
