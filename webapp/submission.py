"""From a valid body to a stored request, and for calls that wait to its end: what all ways of asking share."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import request
from pydantic import BaseModel

from models import client_requests
from models.client_requests import NewRequest, RequestView
from webapp.app_context import context
from webapp.auth import tenant
from webapp.client_errors import InvalidRequest, NotFound
from webapp.prompt_limits import ClientPrompt, application_of

RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,255}")


@dataclass(frozen=True)
class Submission:
    """What a client asks for, however it said it; `limit_param` and `prompt_param` are its names for the fields."""

    model: str
    prompt: ClientPrompt
    limit: int | None
    metadata: Mapping[str, str]
    background: bool
    temperature: float | None
    top_p: float | None
    top_k: int
    seed: int | None
    stop: list[str]
    priority: int
    deadline_s: float | None
    body: BaseModel
    prompt_param: str = "input"
    limit_param: str = "max_output_tokens"


def submit(asked: Submission) -> RequestView:
    """Store a request, once for each Idempotency-Key."""
    new = new_request(asked)
    key = request.headers.get("Idempotency-Key")
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable ASCII characters.", param="Idempotency-Key")
    digest = None if key is None else canonical_digest(asked.body)
    with context().sessions() as session:
        return client_requests.submit(session, new, idempotency_key=key, digest=digest)


def submit_and_wait(asked: Submission) -> RequestView:
    """Store a request and wait for its end, at most as long as the service allows; raises Busy before storing it."""
    waiters = context().waiters
    waiters.reserve()
    try:
        stored = submit(asked).request.id
        waiters.wait(stored, context().wait_s)
    finally:
        waiters.release()
    return find(stored)


def find(id: str) -> RequestView:
    """A request of the caller's tenant; raises NotFound."""
    with context().sessions() as session:
        seen = client_requests.fetch(session, tenant(), known(id))
    if seen is None:
        raise absent(id)
    return seen


def known(id: str) -> str:
    """An id that could exist; others do not reach the database."""
    if not RESPONSE_ID.fullmatch(id):
        raise absent(id)
    return id


def absent(id: str) -> NotFound:
    """The error for an id that this tenant does not have."""
    return NotFound(f"Response with id '{id[:80]}' not found.", param="id", code="response_not_found")


def new_request(asked: Submission) -> NewRequest:
    """The row of what is asked; raises ClientErrors for another model, too long a prompt or too high a limit."""
    served = context().served
    served.check(asked.model)
    limit_tokens = served.limit(asked.limit, param=asked.limit_param)
    counted = served.count(asked.prompt, param=asked.prompt_param)
    application = application_of(asked.metadata, asked.prompt.instructions)
    return NewRequest(
        tenant=tenant(),
        model=served.name,
        application=application,
        instructions=asked.prompt.instructions,
        input=asked.prompt.input,
        body=kept(asked),
        prompt_tokens=counted.prompt_tokens,
        input_tokens=counted.input_tokens,
        limit_tokens=limit_tokens,
        priority=asked.priority,
        deadline_s=asked.deadline_s,
        eta_s=context().expectations.get().response_s(application, counted.input_tokens, context().rooms.get()),
    )


def kept(asked: Submission) -> dict[str, Any]:
    """The row's `body`; greedy decoding is the default."""
    body: dict[str, Any] = {
        "metadata": dict(asked.metadata),
        "background": asked.background,
        "sampling": {
            "temperature": asked.temperature or 0.0,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "top_k": asked.top_k,
            "seed": asked.seed,
        },
        "stop": asked.stop,
    }
    if asked.prompt.messages:
        body["messages"] = asked.prompt.stored_messages
    return body


def canonical_digest(body: BaseModel) -> bytes:
    """The same for bodies that mean the same, whatever the order of their fields."""
    meaning = {"kind": type(body).__name__, **body.model_dump(mode="json")}
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).digest()
