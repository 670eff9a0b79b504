"""The parts of a stored answer, and the items of a response's `output` that show them: thinking, message, calls."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import Field
from pydantic_core import from_json, to_json

from inference.answer_parts import read_answer
from inference.tool_calls import ToolCall, cut_call, text_parameters
from models.client_requests import RequestView
from models.tables import RequestStatus
from protocol.api_objects import ApiObject
from protocol.json_bytes import StoredJson
from request_body import RequestBody, readable_body


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """An answer's thinking, text and calls; `text` is empty if the answer has only thinking or calls."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, ToolCall], ...] = ()  # (id, call); a call's result refers to the id
    cut: bool = False  # the answer ended within its only call, whose arguments are therefore no whole JSON


def answer_parts(view: RequestView) -> AnswerParts:
    """Returns the parts of an answer."""
    return parts_of(view, readable_body(view.request.body))


def parts_of(view: RequestView, body: RequestBody) -> AnswerParts:
    """Returns the parts of an answer; `body` is its request's stored body, already read."""
    read = read_answer(view.request.output_text or "", body.answer_form, text_parameters(body.offered_tools))
    calls, choice = read.calls if body.parallel_tool_calls else read.calls[:1], body.tool_choice
    custom = {tool.name for tool in body.tools if tool.custom}
    cut = None
    if choice.mode == "required" and not calls and view.request.status is not RequestStatus.completed:
        cut = cut_call(read.text, [tool.name for tool in body.tools if choice.function in (None, tool.name)])
    own = view.request.id.removeprefix("resp_")[:24]
    made = [replace(call, custom=call.name in custom) for call in ([cut] if cut else calls)]
    named = tuple((f"call_{own}{number:03d}", call) for number, call in enumerate(made))
    # an answer that the limit has cut within its opening tag was about to think
    opening, said = body.answer_form.opening, read.text.strip()
    thinks = bool(opening) and opening.startswith(said) and view.request.status is RequestStatus.incomplete
    return AnswerParts("" if cut or thinks else read.text, read.reasoning, named, cut is not None)


class LikelyToken(ApiObject):
    """A token that may stand at one place of an answer, and its log probability there."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChosenToken(LikelyToken):
    """The token that was generated at this place, and the likeliest ones."""

    top_logprobs: list[LikelyToken] = Field(default=[])


class OutputText(ApiObject):
    """The text of an answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field(default=[])
    logprobs: list[ChosenToken] | StoredJson = Field(
        default=[], description="If they were asked for; lists leave them out"
    )


class OutputMessage(ApiObject):
    """The message of an answer."""

    id: str
    type: Literal["message"] = "message"
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ThoughtText(ApiObject):
    """The text of a model's thinking."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class ReasoningOutput(ApiObject):
    """A model's thinking before its answer, the first item of `output`."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: Literal["completed", "incomplete"]
    summary: list[Any] = Field(default=[], description="Always empty: `content` has all of it")
    content: list[ThoughtText]

    @classmethod
    def of(cls, id: str, text: str, *, whole: bool = True) -> Self:
        """Returns the item of this text."""
        return cls(id=id, status="completed" if whole else "incomplete", content=[ThoughtText(text=text)])


class CalledFunction(ApiObject):
    """A call of a function, an item of `output` beside the message or in its place."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: Literal["completed", "incomplete"] = "completed"
    call_id: str
    name: str
    arguments: str = Field(description="A JSON object as text; its beginning if the item is incomplete")


class CalledTool(ApiObject):
    """A call of a custom tool, an item of `output` like that of a function."""

    id: str
    type: Literal["custom_tool_call"] = "custom_tool_call"
    status: Literal["completed", "incomplete"] = "completed"
    call_id: str
    name: str
    input: str


OutputItem = ReasoningOutput | OutputMessage | CalledFunction | CalledTool


def called_item(
    own: str, number: int, call_id: str, call: ToolCall, *, cut: bool = False
) -> CalledFunction | CalledTool:
    """Returns the item of a call, the one with this number in the answer whose ids have `own` in them."""
    named: dict[str, Any] = {"status": "incomplete" if cut else "completed", "call_id": call_id, "name": call.name}
    if call.custom:
        return CalledTool(id=f"ctc_{own}{number:03d}", input=call.input, **named)
    return CalledFunction(id=f"fc_{own}{number:03d}", arguments=call.arguments, **named)


def output_items(view: RequestView, body: RequestBody) -> list[OutputItem]:
    """Returns the items of an answer, or none if there is no answer yet."""
    request = view.request
    if request.output_text is None:
        return []
    parts = parts_of(view, body)
    completed = request.status is RequestStatus.completed
    reasoning: list[OutputItem] = []
    if parts.reasoning:
        whole = completed or bool(parts.text or parts.calls)
        reasoning = [ReasoningOutput.of(request.id.replace("resp_", "rs_", 1), parts.reasoning, whole=whole)]
    own = request.id.removeprefix("resp_")
    calls: list[OutputItem] = [
        called_item(own, number, call_id, call, cut=parts.cut) for number, (call_id, call) in enumerate(parts.calls)
    ]
    if (calls or reasoning) and not parts.text:
        return [*reasoning, *calls]
    message = OutputMessage(
        id=request.id.replace("resp_", "msg_", 1),
        status="completed" if completed else "incomplete",
        content=[OutputText(text=parts.text, logprobs=logprobs_of(view))],
    )
    return [*reasoning, message, *calls]


def logprobs_of(view: RequestView) -> list[ChosenToken] | StoredJson:
    """Returns the answer's log probabilities; empty if they were not asked for or not read with the request."""
    if view.logprobs is None:
        return []
    if readable_body(view.request.body).echo:  # the first entries are the prompt's
        return StoredJson(to_json(from_json(view.logprobs)[view.request.prompt_tokens :]).decode())
    return StoredJson(view.logprobs)
