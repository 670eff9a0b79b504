"""/v1/responses: submit, poll, list, cancel, delete. Parses, stores, answers; never touches the broker."""

import hashlib
import json
import re
from typing import Any

from apiflask import APIBlueprint
from flask import request

from models import responses
from models.queue import place
from models.responses import NewRequest, Seen
from models.tables import RequestStatus
from webapp.answers import Deleted, Response, ResponseList, response_of, retry_after_s
from webapp.auth import tenant
from webapp.context import context
from webapp.errors import InvalidRequest, NotFound
from webapp.prompts import Prompt, Turn, application_of, prompt_of
from webapp.schemas import CreateResponse, ListQuery

RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,255}")

api = APIBlueprint("responses", __name__, url_prefix="/v1/responses", tag="Responses")


@api.post("")
@api.input(CreateResponse)
@api.output(Response)
@api.doc(summary="Submit a request", security="ApiKey", responses=[400, 401, 404, 413, 422, 429, 503])
def create(json_data: CreateResponse) -> tuple[Response, dict[str, str]]:
    """Store a request; it is in the database before the answer leaves.

    With `background: true` the answer comes at once, with an id to poll. Otherwise it comes when the response is final,
    or after the service's bound in whatever state it then has.
    """
    new, digest = new_request(json_data), canonical_digest(json_data)
    if json_data.background:
        return shown(submit(new, digest))
    waiters = context().waiters
    waiters.reserve()
    try:
        stored = submit(new, digest).request.id
        waiters.wait(stored, context().wait_s)
    finally:
        waiters.release()
    return answered(stored)


@api.get("")
@api.input(ListQuery, location="query")
@api.output(ResponseList)
@api.doc(summary="List responses", security="ApiKey", responses=[400, 401, 429, 503])
def list_(query_data: ListQuery) -> ResponseList:
    """Newest first unless asked otherwise; `after` takes the last id of the page before."""
    unknown_cursor = InvalidRequest(f"No response '{query_data.after}' to list after.", param="after")
    if query_data.after is not None and not RESPONSE_ID.fullmatch(query_data.after):
        raise unknown_cursor
    with context().sessions() as session:
        page = responses.page(
            session,
            tenant(),
            statuses=[query_data.status] if query_data.status else [],
            application=query_data.application,
            after=query_data.after,
            limit=query_data.limit,
            oldest_first=query_data.order == "asc",
        )
    if page is None:
        raise unknown_cursor
    data = [shown(seen)[0] for seen in page.seen]
    return ResponseList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=page.more,
    )


@api.get("/<id>")
@api.output(Response)
@api.doc(summary="Retrieve a response", security="ApiKey", responses=[401, 404, 429, 503])
def retrieve(id: str) -> tuple[Response, dict[str, str]]:
    """Status, prediction, position and estimated completion; Retry-After says when it pays to ask again."""
    return answered(known(id))


@api.post("/<id>/cancel")
@api.output(Response)
@api.doc(summary="Cancel a response", security="ApiKey", responses=[401, 404, 429, 503])
def cancel(id: str) -> tuple[Response, dict[str, str]]:
    """What waits is cancelled at once, what runs as soon as its worker hears of it; a final one stays as it is."""
    with context().sessions() as session:
        if not responses.cancel(session, tenant(), known(id)):
            raise absent(id)
    return answered(id)


@api.delete("/<id>")
@api.output(Deleted)
@api.doc(summary="Delete a response", security="ApiKey", responses=[401, 404, 409, 429, 503])
def delete(id: str) -> Deleted:
    """Waiting ones are taken out of the queue; running ones must be cancelled first."""
    with context().sessions() as session:
        if not responses.remove(session, tenant(), known(id)):
            raise absent(id)
    return Deleted(id=id)


def new_request(body: CreateResponse) -> NewRequest:
    """The row of a valid body."""
    prompt = prompt_in(body)
    served, metadata, extras = context().served, body.metadata or {}, body.magnus
    served.check(body.model)
    limit_tokens = served.limit(body.max_output_tokens, param="max_output_tokens")
    counted = served.count(prompt, param="input")
    kept: dict[str, Any] = {
        "metadata": metadata,
        "background": bool(body.background),
        "sampling": {
            "temperature": body.temperature or 0.0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "top_k": extras.top_k,
            "seed": extras.seed,
        },
        "stop": extras.stop,
    }
    if prompt.messages:
        kept["messages"] = prompt.stored_messages
    room = context().rooms.get()
    return NewRequest(
        tenant=tenant(),
        model=served.name,
        application=application_of(metadata, prompt.instructions),
        instructions=prompt.instructions,
        input=prompt.input,
        body=kept,
        prompt_tokens=counted.prompt_tokens,
        input_tokens=counted.input_tokens,
        limit_tokens=limit_tokens,
        priority=extras.priority,
        deadline_s=extras.deadline_s,
        eta_s=None if room is None else room.backlog_s + room.typical_s,
    )


def prompt_in(body: CreateResponse) -> Prompt:
    """Instructions and input of a body, whichever way it says them."""
    if isinstance(body.input, str):
        return Prompt(body.instructions or "", body.input)
    return prompt_of(body.instructions, [Turn(message.role, message.text) for message in body.input])


def submit(new: NewRequest, digest: bytes) -> Seen:
    """Store a request, once for each Idempotency-Key."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable ASCII characters.", param="Idempotency-Key")
    with context().sessions() as session:
        return responses.submit(session, new, idempotency_key=key, digest=digest)


def canonical_digest(body: CreateResponse) -> bytes:
    """The same for bodies that mean the same, whatever the order of their fields."""
    return hashlib.sha256(json.dumps(body.model_dump(mode="json"), sort_keys=True).encode()).digest()


def known(id: str) -> str:
    """An id that could exist; others do not reach the database."""
    if not RESPONSE_ID.fullmatch(id):
        raise absent(id)
    return id


def absent(id: str) -> NotFound:
    """The error for an id that this tenant does not have."""
    return NotFound(f"Response with id '{id[:80]}' not found.", param="id", code="response_not_found")


def answered(id: str) -> tuple[Response, dict[str, str]]:
    """The response as it stands, and when to ask again."""
    with context().sessions() as session:
        seen = responses.fetch(session, tenant(), id)
    if seen is None:
        raise absent(id)
    return shown(seen)


def shown(seen: Seen) -> tuple[Response, dict[str, str]]:
    """The response of a request that was read, and when to ask again."""
    queued = seen.request.status is RequestStatus.queued
    where = place(seen, context().rooms.get() if queued else None)
    wait = retry_after_s(seen, where)
    return response_of(seen, where), {} if wait is None else {"Retry-After": str(wait)}
