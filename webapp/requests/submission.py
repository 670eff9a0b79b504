"""Stores the request of a valid body, for every call that submits; reads none of Flask's globals."""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import structlog
from pydantic import BaseModel
from sqlalchemy.orm import Session

from inference.model_prompt import ModelPrompt
from models import new_requests
from models.client_requests import RequestView
from models.new_requests import NewRequest
from models.planning.queue_snapshot import QueueSnapshot
from models.request_predictions import scoped_application
from models.tenants import tenant_limits
from models.tenants.tenant_limits import TenantBacklog
from request_body import RequestBody, readable_body, stored_form
from scheduling.request import SERVICE_TIERS, ServiceTier, is_background, service_tier
from webapp.app_context import AppContext
from webapp.client_errors import InvalidRequest
from webapp.limits.prompt_limits import PromptLimits, TokenCounts
from webapp.requests.client_prompt import application_name
from webapp.requests.options import check_options

IDEMPOTENCY_KEY = re.compile(r"[\x20-\x7e]{1,255}")  # as the OpenAPI document says; clients send a UUID

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The field names of the client's call, used in errors."""

    prompt: str = "input"
    limit: str = "max_output_tokens"
    format: str = "response_format"
    logprobs: str = "logprobs"
    reasoning: str = "reasoning_effort"


@dataclass(frozen=True)
class Submission:
    """A client's request, independent of the call it used; `sent` is the body of that call."""

    tenant: str
    idempotency_key: str | None
    model: str
    prompt: ModelPrompt
    body: RequestBody
    sent: BaseModel
    limit_tokens: int | None
    priority: int = 0
    service_tier: ServiceTier = "default"
    deadline_s: float | None = None
    names: FieldNames = FieldNames()

    @property
    def needs(self) -> dict[str, str]:
        """Returns the abilities that its engine needs, each with the client's field that asks for it."""
        names = self.names
        held_to = "tool_choice" if self.body.tool_choice.mode == "required" else names.format
        fields = {
            "top_k": "magnus.top_k",
            "response_format": held_to,
            "pattern": names.format,
            "format_after_thinking": held_to,
            "logprobs": names.logprobs,
            "raw_prompt": names.prompt,
            "tools": "tools" if self.body.offered_tools else names.prompt,
            "prompt_logprobs": "echo",
            "reasoning": names.reasoning if self.body.reasoning else "chat_template_kwargs",
        }
        return {ability: fields.get(ability, ability) for ability in self.body.needs}


def submit(context: AppContext, submission: Submission) -> RequestView:
    """Stores a request, once for each Idempotency-Key; raises a ClientError for a request that cannot be accepted."""
    return store(context, submission, new_request(context, submission))


def store(context: AppContext, submission: Submission, new: NewRequest, part: str = "") -> RequestView:
    """Stores a checked request; `part` is added to the Idempotency-Key, so that each request of a call has its own."""
    key = checked_key(submission.idempotency_key)
    digest = None if key is None else canonical_digest(submission.sent)
    key = None if key is None else key + part
    one = TenantBacklog(1, new.prompt_tokens, new.size_bytes)
    admitted = context.backlog_limit.admit(new.tenant, one, time.monotonic())
    with admitted:
        view = _insert(context, new, key, digest)
    context.announcer.announce()
    deleted = view.request.status.final and not view.request.input and not readable_body(view.request.body).store
    if deleted:
        raise InvalidRequest(
            f"The answer of {view.request.id}, which has this Idempotency-Key, was not to be stored and is deleted. "
            "Send another key for a new answer.",
            param="Idempotency-Key",
            code="response_not_stored",
        )
    return view


def _insert(context: AppContext, new: NewRequest, key: str | None, digest: bytes | None) -> RequestView:
    if service_tier(new.priority) != "priority":
        if key is None:
            return context.inserts.store(new)
        with context.database.connect() as connection:
            return new_requests.submit(connection, new, idempotency_key=key, digest=digest)
    with context.sessions() as session:
        admitted = within_quota(session, new, context.priority_requests)
        view = new_requests.submit(session.connection(), admitted, idempotency_key=key, digest=digest)
        session.commit()
    return view


def within_quota(session: Session, new: NewRequest, most: int) -> NewRequest:
    """Returns a request of the tier `priority`, or as one of the tier `default` if its tenant may have no more."""
    if tenant_limits.may_prefer(session, new.tenant, most):
        return new
    return replace(new, priority=new.priority - SERVICE_TIERS["priority"])


def served_tier(asked: str | None) -> ServiceTier:
    """Returns the service tier that a client's `service_tier` asks for."""
    return "flex" if asked == "flex" else "priority" if asked == "priority" else "default"


def tier_of_answers(views: Sequence[RequestView]) -> ServiceTier:
    """Returns the service tier of a call's answers, the lowest if they have several."""
    return service_tier(min(view.request.priority for view in views))


def checked_key(key: str | None) -> str | None:
    """Returns the Idempotency-Key; raises InvalidRequest if it is malformed."""
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable ASCII characters.", param="Idempotency-Key")
    return key


def new_request(context: AppContext, submission: Submission) -> NewRequest:
    """Returns the row to insert, with its ETA; raises a ClientError for a request that cannot be accepted."""
    snapshot, limits = context.queue_snapshot.get(), context.prompt_limits
    new = accepted_request(limits, snapshot, submission)
    if snapshot is not None:
        model = new.served_by
        limits.check_served(model, snapshot.unserved_s.get(model, 0.0), snapshot.unserved.get(model, 0))
    # forecasts at submission are for requests that generate and do not wait for others
    if submission.body.pooling is not None or is_background(new.priority):
        return new
    eta = context.response_times.get().eta(
        scoped_application(new.tenant, new.application), new.input_tokens, new.limit_tokens, new.served_by, snapshot
    )
    return new if eta is None else replace(new, **asdict(eta))


def accepted_request(limits: PromptLimits, snapshot: QueueSnapshot | None, submission: Submission) -> NewRequest:
    """Returns the row to insert; raises a ClientError for its model, its size, or needs that all workers lack."""
    body, names = submission.body, submission.names
    if body.pooling is not None:
        tokens = sum(body.pooling.tokens)  # texts and model were checked when the submission was made
        return _row(submission, submission.model, body, TokenCounts(tokens, tokens), limit_tokens=1)
    limits = limits.of(submission.model)
    model = limits.stored_name(submission.model)
    limit_tokens = limits.output_limit(submission.limit_tokens, param=names.limit)
    check_options(body, limit_tokens, names.format, submission.tenant)
    limits.check_template(body, effort=names.reasoning)
    limits.check_ids([token for token, _ in body.sampling.logit_bias], param="logit_bias")
    counts = limits.count_tokens(submission.prompt, param=names.prompt, tenant=submission.tenant)
    lacks = snapshot.lacking.get(limits.model_name, ()) if snapshot else ()
    form = counts.answer_form
    if "raw_prompt" in lacks:  # engines that take chats only may show an answer without its thinking
        form = form.model_copy(update={"opened": False})
    body = body.without_defaults(lacks).model_copy(update={"answer_form": form})
    largest_tokens = snapshot.largest_tokens.get(limits.model_name) if snapshot else None
    limits.check_workers(counts.prompt_tokens, largest_tokens, param=names.prompt)
    if lacks:
        limits.check_needs(replace(submission, body=body).needs, lacks)
    base = None if model == limits.model_name else limits.model_name
    new = replace(_row(submission, model, body, counts, limit_tokens), base=base)
    limits.check_size(new.size_bytes, param="tools" if body.tools else names.prompt)
    return new


def _row(submission: Submission, model: str, body: RequestBody, counts: TokenCounts, limit_tokens: int) -> NewRequest:
    return NewRequest(
        tenant=submission.tenant,
        model=model,
        application=application_name(body.metadata, submission.prompt.instructions),
        instructions=submission.prompt.instructions,
        input=submission.prompt.input,
        body=stored_form(body),
        prompt_tokens=counts.prompt_tokens,
        input_tokens=counts.input_tokens,
        limit_tokens=limit_tokens,
        priority=submission.priority + SERVICE_TIERS[submission.service_tier],
        deadline_s=submission.deadline_s,
        needs=body.needs,
    )


def canonical_digest(body: BaseModel) -> bytes:
    """Returns the SHA-256 of a body; bodies with the same fields and values have the same digest in any order."""
    fields = {"kind": type(body).__name__, **body.model_dump(mode="json")}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()
