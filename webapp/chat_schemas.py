"""Bodies and answers of /v1/chat/completions and /v1/completions, OpenAI's fields and ours in `magnus`."""

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, ValidationInfo, field_validator

from webapp.field_types import Body, Metadata, Seed, StopString, StopStrings, Temperature, Text, TopP
from webapp.output_options import ChatFormat, TopLogprobs
from webapp.response_objects import ApiObject, ChosenToken, Magnus
from webapp.response_schemas import TEXT_OR_LIST, Content, Extras, RoleAndContent

EmptyList = Annotated[list[Any], Field(max_length=0)]
Stop = Annotated[
    Annotated[StopString, Tag("<text>")] | Annotated[StopStrings, Tag("<list>")],
    TEXT_OR_LIST,
]


class ChatMessage(RoleAndContent):
    """One message of a chat; an answer's message can be sent back as it came."""

    content: Content | None = None  # type: ignore[assignment]  # clients send null where there is no text
    refusal: None = None
    tool_calls: EmptyList | None = None
    function_call: None = None
    audio: None = None
    annotations: EmptyList | None = None
    name: Annotated[Text, Field(max_length=64)] | None = Field(default=None, description="Accepted, not used")


class StreamOptions(Body):
    """What a stream has beside its text."""

    include_usage: bool | None = Field(default=None, description="One more chunk at the end with the tokens used")
    include_obfuscation: Literal[False] | None = None


class CommonFields(Body):
    """The fields that both calls have; values that ask for what Magnus cannot do are refused."""

    model: Text = Field(description="Name of the served model, see /v1/models")
    temperature: Temperature | None = Field(default=None, description="0, the default here, is greedy")
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    max_tokens: int | None = Field(default=None, ge=1, description="Most tokens of the answer")
    metadata: Metadata | None = Field(default=None, description="`application` names the kind of request")
    user: Annotated[Text, Field(max_length=512)] | None = None
    n: Literal[1] | None = None
    stream: bool | None = Field(default=None, description="true: server-sent events, token by token")
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    # extensions of other servers, with the values that ask for nothing
    repetition_penalty: Annotated[float, Field(ge=1, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=0)] | None = None
    top_k: Literal[-1, 0] | None = Field(default=None, description="All tokens; `magnus.top_k` takes the likeliest")
    magnus: Extras = Field(default=Extras(), description="What is Magnus's own")

    @field_validator("stream_options")
    @classmethod
    def refuse_options_of_no_stream(cls, value: StreamOptions | None, others: ValidationInfo) -> StreamOptions | None:
        """Refuse options without a stream, as OpenAI does."""
        if value is not None and not others.data.get("stream"):
            raise ValueError("only with stream: true")
        return value

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the tokens used."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CreateChatCompletion(CommonFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: int | None = Field(default=None, ge=1, description="Most tokens of the answer")
    store: bool | None = None
    logprobs: bool | None = Field(default=None, description="Answer with the log probability of each token")
    top_logprobs: TopLogprobs | None = Field(default=None, description="And of so many of the likeliest tokens there")
    tools: EmptyList | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ChatFormat | None = None
    service_tier: Literal["auto", "default"] | None = None

    @field_validator("messages")
    @classmethod
    def refuse_an_empty_question(cls, value: list[ChatMessage]) -> list[ChatMessage]:
        """Refuse a chat whose last message is not the user's, or is empty."""
        if value[-1].role != "user" or not value[-1].text.strip():
            raise ValueError("the last message must be the user's and not be empty")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def refuse_a_number_of_nothing(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Refuse top_logprobs without logprobs, which stands before it."""
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("it needs logprobs to be true")
        return value

    @property
    def asked_logprobs(self) -> int | None:
        """How many of the likeliest tokens are wanted at each place; None if no log probabilities are."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CreateCompletion(CommonFields):
    """POST /v1/completions."""

    prompt: Annotated[Text, Field(min_length=1)] = Field(description="One text; it is asked as a user's message")
    suffix: None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    logprobs: None = None

    @field_validator("prompt")
    @classmethod
    def refuse_an_empty_prompt(cls, value: str) -> str:
        """Refuse a prompt of nothing but white space."""
        if not value.strip():
            raise ValueError("must not be empty")
        return value


class CompletionUsage(ApiObject):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(ApiObject):
    """The answer of a chat."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatLogprobs(ApiObject):
    """The log probabilities of a chat's answer, one for each of its tokens."""

    content: list[ChosenToken]
    refusal: None = None


class ChatChoice(ApiObject):
    """The one choice of a chat."""

    index: int = 0
    message: AssistantMessage
    finish_reason: Literal["stop", "length"]
    logprobs: ChatLogprobs | None = None


class ChatCompletion(ApiObject):
    """OpenAI's ChatCompletion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    magnus: Magnus


class CompletionChoice(ApiObject):
    """The one choice of a completion."""

    index: int = 0
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class Completion(ApiObject):
    """OpenAI's Completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    magnus: Magnus
