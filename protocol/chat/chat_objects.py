"""Answers of /v1/chat/completions and /v1/completions, OpenAI's fields and ours in `magnus`."""

from typing import Any, Literal, Self

from pydantic import Field

from inference.tool_calls import ToolCall
from protocol.api_objects import ApiObject, ListPage
from protocol.json_bytes import StoredJson
from protocol.responses.output_items import ChosenToken
from protocol.responses.response_objects import InputDetails, Magnus, OutputDetails
from scheduling.request import ServiceTier


class CompletionUsage(ApiObject):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails | None = Field(
        default=None, description="If the engine reports them", exclude_if=lambda details: details is None
    )
    completion_tokens_details: OutputDetails | None = Field(
        default=None, description="Only for models that think", exclude_if=lambda details: details is None
    )

    @classmethod
    def of(cls, prompt: int, answer: int, reasoning: int | None, cached: int | None = None) -> Self:
        """Returns the numbers with their sum; if `reasoning` or `cached` is None, that number is unknown."""
        return cls(
            prompt_tokens=prompt,
            completion_tokens=answer,
            total_tokens=prompt + answer,
            prompt_tokens_details=None if cached is None else InputDetails(cached_tokens=cached),
            completion_tokens_details=None if reasoning is None else OutputDetails(reasoning_tokens=reasoning),
        )


class AnsweredFunction(ApiObject):
    """A called function with its arguments, a JSON object as text, or its beginning if the answer was cut off."""

    name: str
    arguments: str


class AnsweredCall(ApiObject):
    """A call of a function in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


class AnsweredText(ApiObject):
    """A called custom tool with the text of the call."""

    name: str
    input: str


class AnsweredCustomCall(ApiObject):
    """A call of a custom tool in an answer."""

    id: str
    type: Literal["custom"] = "custom"
    custom: AnsweredText


def answered_call(id: str, call: ToolCall) -> AnsweredCall | AnsweredCustomCall:
    """Returns a call as an answer shows it."""
    if call.custom:
        return AnsweredCustomCall(id=id, custom=AnsweredText(name=call.name, input=call.input))
    return AnsweredCall(id=id, function=AnsweredFunction(name=call.name, arguments=call.arguments))


class AssistantMessage(ApiObject):
    """The answer of a chat."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(
        default=None, description="What the model thought before its answer", exclude_if=lambda thought: thought is None
    )
    tool_calls: list[AnsweredCall | AnsweredCustomCall] | None = None


class ChatLogprobs(ApiObject):
    """The log probabilities of a chat's answer, one for each of its tokens."""

    content: list[ChosenToken] | StoredJson
    refusal: None = None


FinishReason = Literal["stop", "length", "tool_calls"]


class CommonAnswer(ApiObject):
    """The fields that the answers of both calls have."""

    id: str
    object: str
    created: int
    model: str
    service_tier: ServiceTier = Field(description="The tier that served it")
    choices: list[Any]
    usage: CompletionUsage
    magnus: Magnus


class ChatChoice(ApiObject):
    """One answer of a chat."""

    index: int = 0
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(CommonAnswer):
    """OpenAI's ChatCompletion."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatCompletionList(ListPage):
    """One page of answered chats."""

    data: list[ChatCompletion]


class CompletionLogprobs(ApiObject):
    """The tokens of a completion, and their log probabilities; null for a token that follows no other."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ApiObject):
    """One answer to a prompt."""

    index: int = 0
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None = None


class Completion(CommonAnswer):
    """OpenAI's Completion."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
