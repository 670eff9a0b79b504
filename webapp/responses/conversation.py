"""Conversations over several responses: converts items to turns and back, reads earlier turns, drops the oldest."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from inference.model_prompt import ModelPrompt
from models import client_requests
from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from models.tables import RequestStatus
from request_body import RequestBody, StoredCall, StoredTurn, UnreadableBody, read_body, readable_body
from webapp.app_context import AppContext
from webapp.client_errors import InvalidRequest, NotFound
from webapp.limits.prompt_limits import PromptLimits
from webapp.limits.text_limits import TOO_LONG
from webapp.requests.client_prompt import opening_turns
from webapp.requests.stored_requests import find_request
from webapp.requests.tools import FunctionCallItem, FunctionOutputItem, ItemReference, ReasoningItem, parts_of
from webapp.responses.output_items import ReasoningOutput
from webapp.responses.response_objects import response_of
from webapp.responses.response_schemas import InputItem, Message

NO_PREVIOUS = "previous_response_not_found"  # OpenAI's code
MOST_REFERENCED = 200  # responses whose items an input names, each of which is a query. Not tuned
ITEM_ID = re.compile(r"(?:msg|rs|fc|fco)_([0-9a-f]{32})\d*")
STORED_ITEM: TypeAdapter[InputItem] = TypeAdapter(InputItem)
ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)


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
        elif isinstance(item, FunctionCallItem):
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


def referenced_items(context: AppContext, tenant: str, ids: Collection[str]) -> Mapping[str, InputItem]:
    """Returns items of this tenant's stored responses by their ids; raises InvalidRequest if one is not found."""
    if not ids:
        return {}
    responses = {f"resp_{found[1]}" for one in ids if (found := ITEM_ID.fullmatch(one))}
    if len(responses) > MOST_REFERENCED:
        raise InvalidRequest(
            f"An input refers to items of at most {MOST_REFERENCED} responses: send the older items themselves.",
            param="input",
        )
    items: dict[str, InputItem] = {}
    for response_id in responses:  # one by one, since a response may have megabytes
        with context.sessions() as session:
            view = client_requests.fetch(session, tenant, response_id)
        if view is not None and view.request.input:  # texts with `store: false` are deleted
            for item in (*items_of(view, readable_body(view.request.body)), *answer_items(view)):
                if item["id"] in ids:
                    items[item["id"]] = STORED_ITEM.validate_python(item)
    for one in ids:
        if one not in items:
            raise InvalidRequest(
                f"Item with id '{one[:80]}' not found: its response is deleted, or was not to be stored.", param="input"
            )
    return items


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
    parts = parts_of(view.request.output_text or "", body, view.request.id)
    calls = (StoredCall(id=call_id, name=call.name, arguments=call.arguments) for call_id, call in parts.calls)
    return StoredTurn(role="assistant", content=parts.text, tool_calls=tuple(calls), reasoning=parts.reasoning or None)


def items_of(view: RequestView, body: RequestBody) -> Iterator[dict[str, Any]]:
    """Yields a stored request's input as items of OpenAI's API, oldest first."""
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
        if turn.reasoning:
            yield ReasoningOutput.of(f"rs_{name}", turn.reasoning).model_dump()
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


def answer_items(view: RequestView) -> list[dict[str, Any]]:
    """Returns the items of a stored request's answer."""
    return [item.model_dump() for item in response_of(view, QueuePlace()).output]


def earlier_turns(context: AppContext, tenant: str, id: str) -> list[StoredTurn]:
    """Returns the input and the answer of an earlier response, without its instructions; raises InvalidRequest."""
    try:
        view = find_request(context, tenant, id)
        body = read_body(view.request.body)
    except (NotFound, UnreadableBody) as error:
        raise InvalidRequest(
            f"Previous response with id '{id[:80]}' not found.", param="previous_response_id", code=NO_PREVIOUS
        ) from error
    if view.request.status not in ANSWERED or not view.request.input or body.pooling is not None:
        why = "is not stored" if not body.store else f"has no answer, it is {view.request.status.value}"
        if body.pooling is not None:
            why = "has vectors or scores, and no text"
        raise InvalidRequest(f"Response '{id}' {why}.", param="previous_response_id", code=NO_PREVIOUS)
    return [*stored_turns(view, body), answered_turn(view, body)]


def fitting(
    limits: PromptLimits, turns: Sequence[StoredTurn], prompt_of: Callable[[Sequence[StoredTurn]], ModelPrompt]
) -> list[StoredTurn]:
    """Leaves out the oldest turns until the prompt fits, but never opening system messages or the last turn."""
    opening = opening_turns(turns)
    kept, later = list(turns[:opening]), list(turns[opening:])

    def without(oldest: int) -> list[StoredTurn]:
        rest = later[oldest:]
        while len(rest) > 1 and rest[0].role == "tool":  # the call that it answers was left out
            rest = rest[1:]
        return kept + rest

    def fits(oldest: int) -> bool:
        try:
            limits.count_tokens(prompt_of(without(oldest)), param="input")
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
