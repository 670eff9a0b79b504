"""From the items of a response's input to turns of a conversation, and from a stored conversation to items again."""

from collections.abc import Iterator, Sequence
from typing import Any

from models.client_requests import RequestView
from request_body import RequestBody, StoredCall, StoredTurn
from webapp.responses.response_schemas import InputItem
from webapp.tools.tool_answers import parts_of
from webapp.tools.tool_items import FunctionCallItem, FunctionOutputItem


def turns_of(items: str | Sequence[InputItem]) -> list[StoredTurn]:
    """The turns; calls that follow a message of the assistant, or each other, are of one turn."""
    if isinstance(items, str):
        return [StoredTurn(role="user", content=items)]
    turns: list[StoredTurn] = []
    for item in items:
        if isinstance(item, FunctionCallItem):
            if not turns or turns[-1].role != "assistant":
                turns.append(StoredTurn(role="assistant", content=""))
            calls = (*turns[-1].tool_calls, item.stored)
            turns[-1] = turns[-1].model_copy(update={"tool_calls": calls})
        elif isinstance(item, FunctionOutputItem):
            turns.append(StoredTurn(role="tool", content=item.text, tool_call_id=item.call_id))
        else:
            turns.append(StoredTurn(role=item.role, content=item.text))
    return turns


def stored_turns(view: RequestView, body: RequestBody) -> list[StoredTurn]:
    """The turns of a stored request's input, system messages among them, but not what was given as instructions."""
    request = view.request
    opening: list[StoredTurn] = []
    if body.instructions is not None:  # the input began with system messages, which were added to these
        text = request.instructions.removeprefix(body.instructions).removeprefix("\n\n")
        opening = [StoredTurn(role="system", content=text)]
    if not body.messages:
        return [*opening, StoredTurn(role="user", content=request.input)]
    return [*opening, *(body.messages[1:] if request.instructions else body.messages)]


def answered_turn(view: RequestView, body: RequestBody) -> StoredTurn:
    """A stored request's answer as a turn."""
    parts = parts_of(view.request.output_text or "", body, view.request.id)
    calls = (StoredCall(id=call_id, name=call.name, arguments=call.arguments) for call_id, call in parts.calls)
    return StoredTurn(role="assistant", content=parts.text, tool_calls=tuple(calls))


def items_of(view: RequestView, body: RequestBody) -> Iterator[dict[str, Any]]:
    """A stored request's input as items of OpenAI's API, oldest first."""
    own = view.request.id.removeprefix("resp_")
    for place, turn in enumerate(stored_turns(view, body)):
        name = f"{own}{place:04d}"
        if turn.tool_call_id is not None:
            yield {
                "type": "function_call_output",
                "id": f"fco_{name}",
                "call_id": turn.tool_call_id,
                "output": turn.content,
                "status": "completed",
            }
            continue
        if turn.content or not turn.tool_calls:
            kind = "output_text" if turn.role == "assistant" else "input_text"
            part: dict[str, Any] = {"type": kind, "text": turn.content}
            if turn.role == "assistant":
                part |= {"annotations": [], "logprobs": []}
            message = {"type": "message", "id": f"msg_{name}", "role": turn.role, "status": "completed"}
            yield message | {"content": [part]}
        for number, call in enumerate(turn.tool_calls):
            yield {
                "type": "function_call",
                "id": f"fc_{name}{number:03d}",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
