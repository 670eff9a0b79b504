"""Reads earlier turns of conversations from stored responses."""

import re
from collections.abc import Collection, Mapping

from pydantic import TypeAdapter

from models import client_requests
from models.tables import RequestStatus
from protocol.client_errors import InvalidRequest, NotFound
from protocol.responses.conversation import answer_items, answered_turn, items_of, stored_turns
from protocol.responses.response_schemas import InputItem
from request_body import StoredTurn, UnreadableBody, read_body, readable_body
from webapp.context.app_context import AppContext
from webapp.requests.stored_requests import find_request

NO_PREVIOUS = "previous_response_not_found"  # OpenAI's code
MOST_REFERENCED = 200  # responses to whose items an input may refer; each takes a query. Not tuned
ITEM_ID = re.compile(r"(?:msg|rs|fc|fco)_([0-9a-f]{32})\d*")
STORED_ITEM: TypeAdapter[InputItem] = TypeAdapter(InputItem)
ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)


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
            view = client_requests.fetch(session, tenant, response_id, logprobs=False)
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
