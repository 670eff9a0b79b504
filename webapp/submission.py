"""From a valid body to a stored request, and for waiting calls to its end: shared by every call that submits.

Everything that it needs comes as an argument; it reads none of Flask's globals.
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel

from models import client_requests
from models.client_requests import NewRequest, RequestView
from models.planning.queue_position import QueueSnapshot
from models.request_predictions import scoped_application
from models.tables import RequestStatus
from webapp.app_context import AppContext
from webapp.client_errors import InvalidRequest, NotAnswered, NotFound
from webapp.client_prompt import ClientPrompt, application_name
from webapp.limits.prompt_limits import PromptLimits
from webapp.options.answer_options import NO_OPTIONS, AnswerOptions
from webapp.waiting.client_connection import Patience
from webapp.waiting.waiting_calls import WaitingCall

RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")  # as `client_requests.new_id` makes them
IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,255}")  # as the OpenAPI document says; clients send a UUID

MOST_SEEDS = 2**31  # every engine takes a seed below; any number does that makes two alike rare


@dataclass(frozen=True)
class Submission:
    """What a client asks for, whichever call it used; the names that end in `_param` are that call's field names.

    `format` and `top_logprobs` are None where nothing is asked for.
    """

    tenant: str
    idempotency_key: str | None
    model: str
    prompt: ClientPrompt
    limit_tokens: int | None
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
    stream: bool = False
    prompt_param: str = "input"
    limit_param: str = "max_output_tokens"
    format: dict[str, Any] | None = None
    format_param: str = "response_format"
    top_logprobs: int | None = None
    logprobs_param: str = "logprobs"
    options: AnswerOptions = NO_OPTIONS

    @property
    def needs(self) -> dict[str, str]:
        """What its engine must be able to do, by the names that workers use, with the fields that ask for it."""
        asked = {
            "temperature": ("temperature", bool(self.temperature)),
            "top_k": ("magnus.top_k", bool(self.temperature and self.top_k)),
            "response_format": (self.format_param, self.format is not None),
            "logprobs": (self.logprobs_param, self.top_logprobs is not None),
        }
        if self.options.tool_choice.mode == "required":
            asked["response_format"] = ("tool_choice", True)
        own = {ability: param for ability, (param, is_asked) in asked.items() if is_asked}
        return own | self.options.needs(
            self.prompt, self.prompt_param, sampled=bool(self.temperature), logprobs=self.top_logprobs is not None
        )


def submit(context: AppContext, submission: Submission) -> RequestView:
    """Store a request, once for each Idempotency-Key; raises a ClientError for what cannot be accepted."""
    return store(context, submission, new_request(context, submission))


def store(context: AppContext, submission: Submission, new: NewRequest, part: str = "") -> RequestView:
    """Store a checked request; `part` tells the requests of one call apart, and is added to its Idempotency-Key."""
    key = checked_key(submission.idempotency_key)
    digest = None if key is None else canonical_digest(submission.body)
    key = None if key is None else key + part
    context.backlog_limit.admit(new.tenant, new.prompt_tokens, time.monotonic())
    with context.sessions() as session:
        stored = client_requests.submit(session, new, idempotency_key=key, digest=digest)
    context.announcer.announce()
    return stored


def checked_key(key: str | None) -> str | None:
    """The same Idempotency-Key; raises InvalidRequest for what is none."""
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable ASCII characters.", param="Idempotency-Key")
    return key


def submit_and_wait(context: AppContext, submission: Submission, patience: Patience) -> RequestView:
    """Store a request and wait until it is final; raises Busy before anything is stored.

    It is cancelled if its client leaves meanwhile, unless an Idempotency-Key says that the client may come back.
    """
    with context.waiting_calls.slot(submission.tenant):
        stored = submit(context, submission)
        if stored.request.status.final:
            return stored
        call = wait_for_end(context, stored.request.id, patience)
    if call.over == "left" and submission.idempotency_key is None:
        cancel_request(context, submission.tenant, stored.request.id)
    return call.view or find_request(context, submission.tenant, stored.request.id)


def find_and_wait(context: AppContext, tenant: str, id: str, patience: Patience) -> RequestView:
    """A request of this tenant, final or as it is when the patience is over; raises NotFound, Busy."""
    with context.waiting_calls.slot(tenant):
        found = find_request(context, tenant, id)
        if found.request.status.final:
            return found
        return wait_for_end(context, id, patience).view or find_request(context, tenant, id)


def wait_for_end(context: AppContext, id: str, patience: Patience) -> WaitingCall:
    """Wait for a stored request; the call says how that ended."""
    call = context.waiting_calls.begin(id)
    stop_watching = patience.connection.on_close(call.leave) if patience.connection else None
    try:
        with patience.turn.given_up():
            call.wait_until_over(patience.wait_s)
    finally:
        if stop_watching is not None:
            stop_watching()
        context.waiting_calls.end(call)
    return call


def cancel_request(context: AppContext, tenant: str, id: str) -> None:
    """Cancel what waits, have what runs cancelled, and say so to the calls that wait for it."""
    with context.sessions() as session:
        client_requests.cancel(session, tenant, [id])


def require_answer(view: RequestView) -> None:
    """Return if a final request has an answer; raises NotAnswered, or InvalidRequest if it was cancelled."""
    stored = view.request
    if stored.status is RequestStatus.failed:
        error = stored.error or {}
        raise NotAnswered(f"{stored.id} failed: {error.get('message', 'no reason is known')}", code=error.get("code"))
    if stored.status is RequestStatus.cancelled:
        raise InvalidRequest(f"{stored.id} was cancelled.", code="cancelled")


def find_request(context: AppContext, tenant: str, id: str) -> RequestView:
    """A request of this tenant; raises NotFound."""
    require_response_id(id)
    with context.sessions() as session:
        view = client_requests.fetch(session, tenant, id)
    if view is None:
        raise response_not_found(id)
    return view


def require_response_id(id: str) -> None:
    """Raise NotFound for what cannot be an id, so that it never reaches the database."""
    if not RESPONSE_ID.fullmatch(id):
        raise response_not_found(id)


def response_not_found(id: str) -> NotFound:
    """The error for an id that this tenant does not have."""
    return NotFound(f"Response with id '{id[:80]}' not found.", param="id", code="response_not_found")


def new_request(context: AppContext, submission: Submission) -> NewRequest:
    """The row to insert, with its ETA; raises a ClientError for what cannot be accepted."""
    snapshot = context.queue_snapshot.get()
    new = accepted_request(context.prompt_limits, snapshot, submission)
    eta = context.response_times.get().eta(
        scoped_application(new.tenant, new.application), new.input_tokens, new.limit_tokens, new.model, snapshot
    )
    return new if eta is None else replace(new, **asdict(eta))


def accepted_request(limits: PromptLimits, snapshot: QueueSnapshot | None, submission: Submission) -> NewRequest:
    """The row to insert; raises a ClientError for another model, too long a prompt or too high a limit.

    `snapshot` says what the workers cannot do, as far as that is known.
    """
    limits.check_model(submission.model)
    limit_tokens = limits.output_limit(submission.limit_tokens, param=submission.limit_param)
    submission.options.check(limit_tokens, submission.format, submission.format_param)
    counts = limits.count_tokens(submission.prompt, param=submission.prompt_param)
    largest_tokens = snapshot.largest_tokens.get(limits.model_name) if snapshot else None
    limits.check_workers(counts.prompt_tokens, largest_tokens, param=submission.prompt_param)
    lacking = snapshot.lacking.get(limits.model_name, ()) if snapshot else ()
    limits.check_needs(submission.needs, lacking)
    return NewRequest(
        tenant=submission.tenant,
        model=limits.model_name,
        application=application_name(submission.metadata, submission.prompt.instructions),
        instructions=submission.prompt.instructions,
        input=submission.prompt.input,
        body=stored_body(submission),
        prompt_tokens=counts.prompt_tokens,
        input_tokens=counts.input_tokens,
        limit_tokens=limit_tokens,
        priority=submission.priority,
        deadline_s=submission.deadline_s,
        needs=tuple(submission.needs),
    )


def stored_body(submission: Submission) -> dict[str, Any]:
    """The row's `body`; greedy decoding is the default.

    What is streamed has a seed: after the loss of a worker the same text is generated again.
    """
    seed = submission.seed
    if submission.stream and submission.temperature and seed is None:
        seed = secrets.randbelow(MOST_SEEDS)
    body: dict[str, Any] = {
        "metadata": dict(submission.metadata),
        "background": submission.background,
        "sampling": {
            "temperature": submission.temperature or 0.0,
            "top_p": 1.0 if submission.top_p is None else submission.top_p,
            "top_k": submission.top_k,
            "seed": seed,
            **submission.options.sampling,
        },
        "stop": submission.stop,
        **submission.options.body,
    }
    if submission.stream:
        body["stream"] = True
    if submission.prompt.raw:
        body |= {"raw": True} | ({"prompt_ids": list(submission.prompt.ids)} if submission.prompt.ids else {})
    if submission.prompt.messages:
        body["messages"] = submission.prompt.stored_messages
    if submission.format is not None:
        body["format"] = submission.format
    if submission.top_logprobs is not None:
        body["top_logprobs"] = submission.top_logprobs
    return body


def canonical_digest(body: BaseModel) -> bytes:
    """SHA-256 of a body: equal for bodies with the same fields and values, whatever their order."""
    fields = {"kind": type(body).__name__, **body.model_dump(mode="json")}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()
