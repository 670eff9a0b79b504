"""Conversations over several responses: converts items to turns and back, reads earlier turns, drops the oldest."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from inference.prompts.model_prompt import ModelPrompt
from inference.tool_calls import ToolCall
from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from protocol.client_errors import InvalidRequest
from protocol.limits.prompt_limits import PromptLimits
from protocol.limits.text_limits import TOO_LONG
from protocol.requests.client_prompt import opening_turns
from protocol.responses.output_items import ReasoningOutput, called_item, parts_of
from protocol.responses.response_objects import response_of
from protocol.responses.response_schemas import (
    CustomCallItem,
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    ItemReference,
    Message,
    ReasoningItem,
)
from request_body import RequestBody, StoredCall, StoredTurn

ReferencedItems = Callable[[Collection[str]], Mapping[str, InputItem]]


def refuse_references(ids: Collection[str]) -> Mapping[str, InputItem]:
    """Raises InvalidRequest if there are ids; for submissions that must not read stored responses."""
    if ids:
        raise InvalidRequest("This request cannot refer to items of stored responses.", param="input")
    return {}


def turns_of(items: str | Sequence[InputItem], referenced: ReferencedItems) -> list[StoredTurn]:
    """Returns the turns; a message of the assistant and the calls that follow it form one turn."""
    if isinstance(items, str):
        return [StoredTurn(role="user", content=items)]
    turns: list[StoredTurn] = []
    thought: str | None = None
    stored = referenced([item.id for item in items if isinstance(item, ItemReference)])
    for each in items:
        item = stored[each.id] if isinstance(each, ItemReference) else each
        if isinstance(item, ReasoningItem):
            thought = item.text or None
        elif isinstance(item, FunctionCallItem | CustomCallItem):
            if not turns or turns[-1].role != "assistant":
                turns.append(StoredTurn(role="assistant", content="", reasoning=thought))
            thought = None
            calls = (*turns[-1].tool_calls, item.stored)
            turns[-1] = turns[-1].model_copy(update={"tool_calls": calls})
        elif isinstance(item, FunctionOutputItem):
            turns.append(StoredTurn(role="tool", content=item.text, tool_call_id=item.call_id))
        elif isinstance(item, Message):
            answered = item.role == "assistant"
            turns.append(StoredTurn(role=item.role, content=item.text, reasoning=thought if answered else None))
            thought = None
    return turns


def stored_turns(view: RequestView, body: RequestBody) -> list[StoredTurn]:
    """Returns the turns of a stored request's input, with its system messages but without its instructions."""
    request = view.request
    opening: list[StoredTurn] = []
    if body.instructions is not None:  # the input's system messages were added to the instructions
        text = request.instructions.removeprefix(body.instructions).removeprefix("\n\n")
        opening = [StoredTurn(role="system", content=text)]
    if not body.messages:
        return [*opening, StoredTurn(role="user", content=request.input)]
    return [*opening, *(body.messages[1:] if request.instructions else body.messages)]


def answered_turn(view: RequestView, body: RequestBody) -> StoredTurn:
    """Returns a stored request's answer as a turn."""
    parts = parts_of(view, body)
    calls = tuple(
        StoredCall(id=call_id, name=call.name, arguments=call.arguments, custom=call.custom)
        for call_id, call in parts.calls
    )
    return StoredTurn(role="assistant", content=parts.text, tool_calls=calls, reasoning=parts.reasoning or None)


def items_of(view: RequestView, body: RequestBody) -> Iterator[dict[str, Any]]:
    """Yields a stored request's input as items of OpenAI's API, oldest first."""
    own, custom = view.request.id.removeprefix("resp_"), set[str]()  # the ids of calls of custom tools
    for place, turn in enumerate(stored_turns(view, body)):
        name = f"{own}{place:04d}"
        if turn.tool_call_id is not None:
            yield {
                "type": "custom_tool_call_output" if turn.tool_call_id in custom else "function_call_output",
                "id": f"fco_{name}",
                "call_id": turn.tool_call_id,
                "output": turn.content,
                "status": "completed",
            }
            continue
        if turn.reasoning:
            yield ReasoningOutput.of(f"rs_{name}", turn.reasoning).model_dump()
        if turn.content or not turn.tool_calls:
            kind = "output_text" if turn.role == "assistant" else "input_text"
            part: dict[str, Any] = {"type": kind, "text": turn.content}
            if turn.role == "assistant":
                part |= {"annotations": [], "logprobs": []}
            message = {"type": "message", "id": f"msg_{name}", "role": turn.role, "status": "completed"}
            yield message | {"content": [part]}
        custom |= {call.id for call in turn.tool_calls if call.custom}
        for number, call in enumerate(turn.tool_calls):
            yield called_item(name, number, call.id, ToolCall(call.name, call.arguments, call.custom)).model_dump()


def answer_items(view: RequestView) -> list[dict[str, Any]]:
    """Returns the items of a stored request's answer."""
    return [item.model_dump() for item in response_of(view, QueuePlace()).output]


def fitting(
    limits: PromptLimits,
    turns: Sequence[StoredTurn],
    prompt_of: Callable[[Sequence[StoredTurn]], ModelPrompt],
    tenant: str,
) -> list[StoredTurn]:
    """Leaves out the oldest turns until the prompt fits, but never opening system messages or the last turn."""
    opening = opening_turns(turns)
    kept, later = list(turns[:opening]), list(turns[opening:])

    def without(oldest: int) -> list[StoredTurn]:
        rest = later[oldest:]
        while len(rest) > 1 and rest[0].role == "tool":  # the call of this result was left out
            rest = rest[1:]
        return kept + rest

    def fits(oldest: int) -> bool:
        try:
            limits.count_tokens(prompt_of(without(oldest)), param="input", tenant=tenant)
        except InvalidRequest as error:
            if error.code == TOO_LONG:
                return False
            raise
        return True

    low, high = 0, max(0, len(later) - 1)
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return without(low)


def refuse_earlier(id: str) -> list[StoredTurn]:
    """Raises InvalidRequest, for submissions that must not read stored responses."""
    raise InvalidRequest("This request cannot go on from another one.", param="previous_response_id")
