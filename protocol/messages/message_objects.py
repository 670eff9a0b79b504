"""Answers and errors of /v1/messages, made from stored requests; our own fields are in `magnus`."""

from typing import Any, Literal, Self

from pydantic import Field
from pydantic_core import from_json

from inference.tool_calls import ToolCall
from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from models.tables import RequestStatus, StoredRequest
from protocol.api_objects import ApiObject
from protocol.client_errors import ErrorObject
from protocol.responses.output_items import AnswerParts, parts_of
from protocol.responses.response_objects import Magnus, magnus_of
from request_body import RequestBody, readable_body

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ShownText(ApiObject):
    """The text of an answer."""

    type: Literal["text"] = "text"
    text: str


class ShownThinking(ApiObject):
    """What the model thought before its answer."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = Field(default="", description="Always empty")


class ShownCall(ApiObject):
    """A call of a function in an answer."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class ThinkingTokens(ApiObject):
    """Details of the answer's tokens."""

    thinking_tokens: int


class MessageUsage(ApiObject):
    """Tokens read and written."""

    input_tokens: int = Field(description="Without those of `cache_read_input_tokens`")
    cache_creation_input_tokens: int = Field(default=0, description="Always 0")
    cache_read_input_tokens: int = Field(description="Not computed again; 0 if the engine does not report them")
    output_tokens: int
    output_tokens_details: ThinkingTokens | None = Field(default=None, description="Only for models that think")


class AnsweredMessage(ApiObject):
    """Anthropic's Message."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ShownThinking | ShownText | ShownCall]
    stop_reason: StopReason | None
    stop_sequence: str | None = Field(description="Which one ended the answer, if the engine said so")
    usage: MessageUsage
    magnus: Magnus


class MessageTokens(ApiObject):
    """Anthropic's count of a prompt's tokens."""

    input_tokens: int


class MessageFault(ErrorObject):
    """An error with a type of Anthropic's; `details.error_code` is its code, too, where Anthropic's clients read it."""

    details: dict[str, str | None]


class MessageError(ApiObject):
    """The body of every error of these calls."""

    type: Literal["error"] = "error"
    error: MessageFault
    request_id: str | None = None

    @classmethod
    def of(cls, status: int, error: ErrorObject, request_id: str | None = None) -> Self:
        """Returns the body for an error in OpenAI's form with this status code."""
        fields = error.model_dump() | {"type": error_type(status), "details": {"error_code": error.code}}
        return cls(error=MessageFault(**fields), request_id=request_id)


ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_type(status: int) -> str:
    """Returns Anthropic's type of an error with this status code."""
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def message_of(view: RequestView) -> AnsweredMessage:
    """Returns a stored request as a message, whose answer may be unfinished; an empty one is an empty text."""
    request, body = view.request, readable_body(view.request.body)
    parts = parts_of(view, body)
    thought = [ShownThinking(thinking=parts.reasoning)] if parts.reasoning else []
    reason = stop_reason(view, body, parts)
    said = [ShownText(text=parts.text)] if parts.text or (reason and not (thought or parts.calls)) else []
    return AnsweredMessage(
        id=request.id.replace("resp_", "msg_", 1),
        model=request.model,
        content=[*thought, *said, *(shown_call(call_id, call) for call_id, call in parts.calls)],
        stop_reason=reason,
        stop_sequence=stop_sequence(request, body) if reason == "stop_sequence" else None,
        usage=message_usage(view),
        magnus=magnus_of(view, QueuePlace(), body),
    )


def shown_call(call_id: str, call: ToolCall) -> ShownCall:
    """Returns a call as an answer shows it; arguments that the limit has cut are shown up to there."""
    try:
        arguments = from_json(call.arguments or "{}", allow_partial="trailing-strings")
    except ValueError:  # cut arguments from an engine without JSON grammars, or too deep ones
        arguments = {}
    return ShownCall(id=call_id, name=call.name, input=arguments)


def stop_reason(view: RequestView, body: RequestBody, parts: AnswerParts) -> StopReason | None:
    """Returns why the answer ended; None if it has not."""
    if not view.request.status.final:
        return None
    if parts.calls and not parts.cut:
        return "tool_use"
    if view.request.status is RequestStatus.incomplete:
        return "max_tokens"
    return "stop_sequence" if view.request.finish_reason == "stop" and body.stop else "end_turn"


def stop_sequence(request: StoredRequest, body: RequestBody) -> str | None:
    """Returns the stop string that ended the answer; None if its engine did not say which of several."""
    return body.stop[0] if len(body.stop) == 1 else request.stop_string


def message_usage(view: RequestView) -> MessageUsage:
    """Counts the tokens of an answer and of its prompt."""
    request = view.request
    cached, thought = request.cached_tokens or 0, request.reasoning_tokens
    return MessageUsage(
        input_tokens=request.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=request.output_tokens or 0,
        output_tokens_details=None if thought is None else ThinkingTokens(thinking_tokens=thought),
    )
