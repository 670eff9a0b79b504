"""Makes the row to insert for a valid body, for every call that submits; reads none of Flask's globals."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import structlog
from pydantic import BaseModel
from pydantic_core import to_json

from inference.prompts.model_prompt import ModelPrompt
from models.client_requests import RequestView
from models.new_requests import NewRequest
from models.planning.queue_snapshot import NO_MODEL, QueueSnapshot
from models.tables import RequestKind
from protocol.client_errors import InvalidRequest
from protocol.limits.prompt_limits import PromptLimits, TokenCounts
from protocol.requests.client_prompt import application_name
from protocol.requests.options import check_limit, check_options
from protocol.requests.thinking_room import BUDGET, with_thinking_room
from request_body import RequestBody, stored_form
from scheduling.request import TIER_LEVELS, ServiceTier

# Fields of a stored body that do not change its answer.
ANSWERED_ALIKE = frozenset({"metadata", "background", "repeats_prompt"})
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
    budget: str = BUDGET


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
    kind: RequestKind = "answer"
    priority: int = 0
    service_tier: ServiceTier = "default"
    deadline_s: float | None = None
    best_effort: bool = False  # accepted even if its answer is unlikely to come within `deadline_s`
    quote: str | None = None  # the id of the offer that it accepts
    names: FieldNames = FieldNames()

    @property
    def needs(self) -> dict[str, str]:
        """Returns the abilities that an engine needs for the request, each with the client's field that asks for it."""
        names = self.names
        held_to = "tool_choice" if self.body.tool_choice.mode == "required" else names.format
        fields = {
            "top_k": "magnus.top_k",
            "landing": "magnus.landing",
            "response_format": held_to,
            "pattern": names.format,
            "format_after_thinking": held_to,
            "logprobs": names.logprobs,
            "raw_prompt": names.prompt,
            "tools": "tools" if self.body.offered_tools else names.prompt,
            "prompt_logprobs": "echo",
            "reasoning": names.reasoning if self.body.reasoning else "chat_template_kwargs",
            BUDGET: names.budget,
        }
        return {ability: fields.get(ability, ability) for ability in self.body.needs}


def served_tier(asked: str | None) -> ServiceTier:
    """Returns the service tier that a client's `service_tier` asks for."""
    return next((tier for tier in TIER_LEVELS if tier == asked), "default")


def tier_of_answers(views: Sequence[RequestView]) -> ServiceTier:
    """Returns the service tier of a call's answers, the lowest if they have several."""
    return min((view.request.tier for view in views), key=TIER_LEVELS.__getitem__)


def checked_key(key: str | None) -> str | None:
    """Returns the Idempotency-Key; raises InvalidRequest if it is malformed."""
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable ASCII characters.", param="Idempotency-Key")
    return key


def accepted_request(limits: PromptLimits, snapshot: QueueSnapshot | None, submission: Submission) -> NewRequest:
    """Returns the row to insert; raises a ClientError for a wrong model or size, or needs that all workers lack."""
    body, names = submission.body, submission.names
    if body.pooling is not None:
        tokens = sum(body.pooling.tokens)  # texts and model were checked when the submission was made
        return _row(submission, submission.model, body, TokenCounts(tokens, tokens), limit_tokens=1)
    limits = limits.of(submission.model)
    body = body.model_copy(update={"literal_schemas": True}) if limits.literal_schemas else body
    model = limits.stored_name(submission.model)
    limit_tokens = limits.output_limit(submission.limit_tokens, param=names.limit)
    check_options(body, limit_tokens, names.format, submission.tenant, limits.prompt_format)
    limits.check_template(body, effort=names.reasoning)
    limits.check_ids([token for token, _ in body.sampling.logit_bias], param="logit_bias")
    # the worker renders the prompt again, and must get the same tokens
    at = {"rendered_at": datetime.now().astimezone().isoformat()} if limits.prompt_format.reads_clock else {}
    prompt = replace(submission.prompt, body=submission.prompt.body.model_copy(update=at))
    counts = limits.count_tokens(prompt, param=names.prompt, tenant=submission.tenant)
    limit_tokens = limits.fitting_limit(limit_tokens, counts.prompt_tokens)
    check_limit(body, limit_tokens, names.limit, submission.tenant, limits.prompt_format)
    body = with_thinking_room(body, limit_tokens, limits.prompt_format, param=names.budget)
    workers = snapshot.of(limits.model_name) if snapshot else NO_MODEL
    lacks = workers.lacking
    form = counts.answer_form
    if "raw_prompt" in lacks:  # engines that take chats only may show an answer without its thinking
        form = form.model_copy(update={"opened": False})
    body = body.without_defaults(lacks).model_copy(update={"answer_form": form, **at})
    limits.check_workers(counts.prompt_tokens, workers.largest_tokens, param=names.prompt)
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
        kind=submission.kind,
        tier=submission.service_tier,
        priority=submission.priority,
        deadline_s=submission.deadline_s,
        needs=body.needs,
        computation=computation_of(submission, model, body, limit_tokens),
    )


def computation_of(submission: Submission, model: str, body: RequestBody, limit_tokens: int) -> bytes | None:
    """Returns the SHA-256 of all that decides an answer; None if another request would get another one, or a stream.

    Answers that are not to be stored are deleted once they are sent, so that they cannot be shared.
    """
    repeatable = body.sampling.greedy or body.sampling.seed is not None
    if submission.kind != "answer" or body.stream or not body.store or not body.twins or not repeatable:
        return None
    stored = {name: value for name, value in stored_form(body).items() if name not in ANSWERED_ALIKE}
    fields = [model, submission.prompt.instructions, submission.prompt.input, limit_tokens, stored]
    return hashlib.sha256(to_json(fields)).digest()


def canonical_digest(body: BaseModel, exclude: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Returns the SHA-256 of a body; bodies with the same fields and values have the same digest in any order.

    `exclude` names fields that make no difference, as Pydantic takes them.
    """
    fields = {"kind": type(body).__name__, **body.model_dump(mode="json", exclude=dict(exclude))}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()
