"""The calls of functions in a stored request's answer."""

from dataclasses import dataclass

from inference.tool_calls import ToolCall, read_tool_calls
from models.client_requests import RequestView
from request_body import RequestBody, readable_body


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """What an answer says, and what it calls; `text` is empty where it only calls."""

    text: str
    calls: tuple[tuple[str, ToolCall], ...] = ()  # by the ids that results name


def answer_parts(view: RequestView) -> AnswerParts:
    """The parts of an answer; one of a request without tools is all text."""
    return parts_of(view.request.output_text or "", readable_body(view.request.body), view.request.id)


def parts_of(text: str, body: RequestBody, request_id: str) -> AnswerParts:
    """The parts of this text as the answer to that request."""
    if not body.offered_tools:
        return AnswerParts(text)
    rest, calls = read_tool_calls(text, {tool.name for tool in body.offered_tools})
    if not body.parallel_tool_calls:
        calls = calls[:1]
    own = request_id.removeprefix("resp_")[:24]
    return AnswerParts(rest, tuple((f"call_{own}{number:03d}", call) for number, call in enumerate(calls)))
