"""The items of a response's `output`: what the model thought, its message, its calls of functions."""

from typing import Any, Literal, Self

from pydantic import Field

from models.client_requests import RequestView
from models.tables import RequestStatus
from request_body import RequestBody, readable_body
from webapp.api_objects import ApiObject
from webapp.requests.tools import parts_of


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
    logprobs: list[ChosenToken] = Field(default=[], description="If they were asked for; lists leave them out")


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
    status: Literal["completed"] = "completed"
    call_id: str
    name: str
    arguments: str = Field(description="A JSON object as text")


OutputItem = ReasoningOutput | OutputMessage | CalledFunction


def output_items(view: RequestView, body: RequestBody) -> list[OutputItem]:
    """Returns the items of an answer, or none if there is no answer yet."""
    request = view.request
    if request.output_text is None:
        return []
    parts = parts_of(request.output_text, body, request.id)
    completed = request.status is RequestStatus.completed
    reasoning: list[OutputItem] = []
    if parts.reasoning:
        whole = completed or bool(parts.text or parts.calls)
        reasoning = [ReasoningOutput.of(request.id.replace("resp_", "rs_", 1), parts.reasoning, whole=whole)]
    calls: list[OutputItem] = [
        CalledFunction(
            id=request.id.replace("resp_", "fc_", 1) + f"{number:03d}",
            call_id=call_id,
            name=call.name,
            arguments=call.arguments,
        )
        for number, (call_id, call) in enumerate(parts.calls)
    ]
    if (calls or reasoning) and not parts.text:
        return [*reasoning, *calls]
    message = OutputMessage(
        id=request.id.replace("resp_", "msg_", 1),
        status="completed" if completed else "incomplete",
        content=[OutputText(text=parts.text, logprobs=logprobs_of(view))],
    )
    return [*reasoning, message, *calls]


def logprobs_of(view: RequestView) -> list[ChosenToken]:
    """Returns the log probabilities of the answer's tokens; empty if not asked for or not read with the request."""
    entries = view.logprobs or []
    if readable_body(view.request.body).echo:  # the first entries are the prompt's
        entries = entries[view.request.prompt_tokens :]
    return [ChosenToken.model_validate(one) for one in entries]
