"""Bodies of /v1/chat/completions and /v1/completions, OpenAI's fields and ours in `magnus`."""

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, ValidationInfo, field_validator

from protocol.api_objects import PageQuery
from protocol.field_types import (
    TEXT_OR_LIST,
    AnswerLimit,
    HistoryBody,
    Metadata,
    Seed,
    StopString,
    StopStrings,
    Temperature,
    Text,
    TopP,
    only_beside,
)
from protocol.requests.client_prompt import CompletionPrompt
from protocol.requests.options import AskedTier, ChatFormat, SamplingFields, TemplateVariables, TopLogprobs
from protocol.requests.structured_outputs import StructuredFields
from protocol.requests.tools import (
    FUNCTION_OR_CUSTOM,
    MOST_TOOLS,
    Arguments,
    CallId,
    ChatTool,
    ChatToolChoice,
    ToolName,
    stored_custom_call,
)
from protocol.responses.response_schemas import Content, Extras, RoleAndContent, StreamOptions
from request_body import Effort, StoredCall, StoredTurn

MOST_ANSWERS = 128  # answers of one call: OpenAI's bound of `n`; each is a request of its own
EmptyList = Annotated[list[Any], Field(max_length=0)]
Stop = Annotated[Annotated[StopString, Tag("<text>")] | Annotated[StopStrings, Tag("<list>")], TEXT_OR_LIST]


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


class CallOfCustom(HistoryBody):
    """A custom tool with the text of a call."""

    name: ToolName
    input: Text


class ChatCustomCall(HistoryBody):
    """A call of a custom tool in an earlier answer of a chat, sent back as it came."""

    id: CallId
    type: Literal["custom"]
    custom: CallOfCustom
    index: int | None = Field(default=None, description="Accepted as a stream carries it, not used")

    @property
    def stored(self) -> StoredCall:
        """Returns the call as the request's row stores it."""
        return stored_custom_call(self.id, self.custom.name, self.custom.input)


ChatCall = Annotated[
    Annotated[ChatToolCall, Tag("<function>")] | Annotated[ChatCustomCall, Tag("<custom>")], FUNCTION_OR_CUSTOM
]

CALLS_ARE_THE_ASSISTANTS = only_beside("role", "assistant", "only the assistant's messages have calls")
Calls = Annotated[list[ChatCall], Field(max_length=MOST_TOOLS), CALLS_ARE_THE_ASSISTANTS]
Thoughts = Annotated[Text, only_beside("role", "assistant", "only the assistant's messages have it")]


class ChatMessage(RoleAndContent):
    """One message of a chat; an answer's message can be sent back as it came."""

    role: Literal["user", "assistant", "system", "developer", "tool"]  # type: ignore[assignment]
    content: Content | None = None  # type: ignore[assignment]  # clients send null where there is no text
    refusal: None = None
    tool_calls: Calls | None = None
    tool_call_id: Annotated[CallId, only_beside("role", "tool", "only a tool's messages have it")] | None = Field(
        default=None, description="Id of the call whose result a tool's message has"
    )
    function_call: None = None
    reasoning_content: Thoughts | None = Field(
        default=None, description="What the answer thought, for templates that show it: in calls and their results"
    )
    reasoning: Thoughts | None = Field(default=None, description="As `reasoning_content`, which goes before it")
    audio: None = None
    annotations: EmptyList | None = None
    name: Annotated[Text, Field(max_length=64)] | None = Field(default=None, description="Accepted, not used")

    @property
    def turn(self) -> StoredTurn:
        """Returns the message as a turn of the conversation."""
        calls = tuple(call.stored for call in self.tool_calls or ())
        return StoredTurn(
            role=self.role,
            content=self.text,
            tool_calls=calls,
            tool_call_id=self.tool_call_id,
            reasoning=self.reasoning_content or self.reasoning or None,
        )


class ChatStreamOptions(StreamOptions):
    """The options of a stream of chunks."""

    include_usage: bool | None = Field(default=None, description="One more chunk at the end with the tokens used")
    continuous_usage_stats: bool | None = Field(
        default=None, description="vLLM's: each chunk has the tokens so far, those of the answer counted in its text"
    )


class WaitingFields(SamplingFields):
    """The fields of each call that generates an answer while its client waits."""

    model: Text = Field(description="Name of the served model, see /v1/models")
    temperature: Temperature | None = Field(
        default=None, description="0 is greedy, and the default unless the model has one"
    )
    top_p: TopP | None = None
    stream: bool | None = Field(default=None, description="true: server-sent events, token by token")
    stream_options: Annotated[StreamOptions, only_beside("stream", True, "only with stream: true")] | None = None
    service_tier: str | None = None
    magnus: Extras = Field(default=Extras(), description="Fields that only Magnus has")


class CommonFields(StructuredFields, WaitingFields):
    """The fields that chats and completions have; values that ask for what Magnus cannot do are refused."""

    seed: Seed | None = None
    stop: Stop | None = None
    max_tokens: AnswerLimit = Field(default=None, description="Most tokens of the answer; -1 is as if left out")
    metadata: Metadata | None = Field(default=None, description="`application` names the kind of request")
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = Field(default=None, description="Answers to each prompt")
    stream_options: Annotated[ChatStreamOptions, only_beside("stream", True, "only with stream: true")] | None = None
    service_tier: AskedTier = None

    @property
    def stops(self) -> list[str]:
        """Returns the stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CreateChatCompletion(CommonFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: AnswerLimit = Field(default=None, description="As `max_tokens`")
    store: bool | None = Field(default=None, description="false: deleted once it is answered")
    logprobs: bool | None = Field(default=None, description="Answer with the log probability of each token")
    top_logprobs: Annotated[TopLogprobs, only_beside("logprobs", True, "it needs logprobs to be true")] | None = Field(
        default=None, description="And those of this many likeliest tokens"
    )
    tools: Annotated[list[ChatTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="false: at most one call an answer")
    response_format: ChatFormat | None = None
    reasoning_effort: Effort | None = Field(
        default=None, description="How much the model shall think, where its chat template can say so; none: not at all"
    )
    chat_template_kwargs: TemplateVariables | None = None
    continue_final_message: bool | None = Field(
        default=None, description="true: the answer goes on with the last message, the assistant's"
    )
    add_generation_prompt: bool | None = Field(default=None, description="false only with continue_final_message")
    verbosity: Literal["medium"] | None = None
    echo: Literal[False] | None = None
    priority: Literal[0] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None

    @field_validator("messages")
    @classmethod
    def refuse_an_empty_question(cls, value: list[ChatMessage]) -> list[ChatMessage]:
        """Refuses a chat of the assistant's messages alone; its last message may be the assistant's own."""
        if not any(
            message.role == "tool" or (message.role != "assistant" and message.text.strip()) for message in value
        ):
            raise ValueError("one message must be the user's, the system's or a tool's, and not be empty")
        if value[-1].tool_calls:
            raise ValueError("the results of the last message's calls are missing")
        if any(message.role == "tool" and message.tool_call_id is None for message in value):
            raise ValueError("a tool's message needs tool_call_id")
        return value

    @field_validator("continue_final_message")
    @classmethod
    def refuse_to_continue_nothing(cls, value: bool | None, others: ValidationInfo) -> bool | None:
        """Refuses to continue a message that is not the assistant's, or that is empty."""
        messages = others.data.get("messages")
        if value and messages and (messages[-1].role != "assistant" or not messages[-1].text.strip()):
            raise ValueError("the last message must be the assistant's, and not be empty")
        return value

    @field_validator("add_generation_prompt")
    @classmethod
    def refuse_another_ending(cls, value: bool | None, others: ValidationInfo) -> bool | None:
        """Refuses two equal values: either a new answer is begun, or the final message is continued."""
        if value is not None and value == bool(others.data.get("continue_final_message")):
            raise ValueError("either it or continue_final_message is true")
        return value

    @property
    def asked_logprobs(self) -> int | None:
        """Returns how many of the likeliest tokens are wanted at each place, or None without log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatListQuery(PageQuery):
    """GET /v1/chat/completions."""

    order: Literal["asc", "desc"] = Field(default="asc", description="By arrival; asc: oldest first, as with OpenAI")


class CreateCompletion(CommonFields):
    """POST /v1/completions."""

    prompt: CompletionPrompt = Field(
        description="A text, its tokens, or a list of either; the model reads it as it is, without its chat template"
    )
    suffix: None = None
    echo: bool | None = Field(default=None, description="true: each answer begins with its prompt")
    best_of: int | None = Field(default=None, description="Accepted where it is `n`")
    logprobs: TopLogprobs | None = Field(
        default=None, description="The log probability of each token, with `echo` of the prompt's too"
    )

    @field_validator("best_of")
    @classmethod
    def refuse_a_choice_of_the_best(cls, value: int | None, others: ValidationInfo) -> int | None:
        """Refuses a `best_of` other than `n`, because all answers that are generated are returned."""
        if value is not None and value != (others.data.get("n") or 1):
            raise ValueError("only as many answers are generated as `n` asks for")
        return value
