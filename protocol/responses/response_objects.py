"""The answers of /v1/responses: OpenAI's Response object with a `magnus` object in it."""

import json
import math
from datetime import datetime
from typing import Any, Literal

import structlog
from pydantic import Field

from models.client_requests import RequestView
from models.operations.promise_book import is_at_risk, is_kept
from models.planning.queue_position import QueuePlace, tokens_left
from models.tables import RequestStatus
from protocol.api_objects import ApiObject, DeletedObject, ListPage
from protocol.responses.output_items import OutputItem, output_items
from request_body import CUSTOM_INPUT, RequestBody, StoredTool, UnreadableBody, read_body
from scheduling.request import ServiceTier

MIN_RETRY_S = 1  # Retry-After has whole seconds
MAX_RETRY_S = 120  # OpenAI's clients honour Retry-After up to 120 s
log = structlog.get_logger()


IncompleteReason = Literal["max_output_tokens", "loop"]


class ShownPromise(ApiObject):
    """What the accepted quote promised, and whether it was kept."""

    promised_by: float | None = Field(description="As a Unix time; null if only the price was offered")
    probability: float | None = Field(description="The share of such promises that are kept")
    price: float | None = Field(description="In the operator's currency; null without MAGNUS_PRICES")
    kept: bool | None = Field(description="null until it is known, and for a cancelled request")
    at_risk: bool = Field(description="Whether the answer is now expected later than promised")


class Magnus(ApiObject):
    """Fields of a response that OpenAI's API lacks; null while a value is unknown."""

    application: str
    arrived_at: float = Field(description="As a Unix time of the database's clock; `created_at` has whole seconds")
    prompt_tokens: int = Field(description="Tokens of the whole prompt, instructions included")
    predicted_tokens: int | None = Field(description="Predicted tokens of the answer, the median")
    predicted_upper_tokens: int | None = Field(description="Their upper quantile, what memory is reserved for")
    predictor_version: str | None
    tokens_so_far: int = Field(description="Tokens generated so far, by the last heartbeat")
    tokens_left: int | None = Field(default=None, description="Tokens that the answer will still get, the median")
    tokens_left_low: int | None = Field(default=None, description="Their 5 % quantile, by the last prediction")
    tokens_left_high: int | None = Field(default=None, description="Their 95 % quantile, by the last prediction")
    queue_position: int | None = Field(description="1 is served next; null when running, final or not yet placed")
    eta_s: float | None = Field(description="Seconds until the answer is expected")
    eta_low_s: float | None = Field(
        description="Lower bound of eta_s: nine of ten answers come between both bounds; null: not known yet"
    )
    eta_high_s: float | None = Field(description="Upper bound of eta_s; null: not known yet")
    eta_at: float | None = Field(description="eta_s as a Unix time of the database's clock")
    waits_for: str | None = Field(default=None, description="What it waits for; null when running or final")
    batch: int | None = Field(description="The batch it is in, or was in last")
    worker: str | None
    attempts: int
    twin_of: str | None = Field(
        default=None, description="The equal request whose answer this one gets, so that it is computed only once"
    )
    landed: bool = Field(
        default=False,
        description="Whether the engine ended the answer within its limit: valid in its format, or with a sentence",
    )
    incomplete_reason: IncompleteReason | None = Field(
        default=None, description="Why the answer is incomplete; loop: it repeated itself, and was ended"
    )
    dropped_tools: list[str] = Field(
        default=[], description="Types of tools that were left out, because only OpenAI or Anthropic runs them"
    )
    promise: ShownPromise | None = Field(default=None, description="Of the quote that the call accepted")


class ResponseError(ApiObject):
    """Why a response failed."""

    code: str
    message: str


UNREADABLE_ANSWER = ResponseError(code="unreadable_answer", message="The stored answer cannot be read. It is logged.")


class IncompleteDetails(ApiObject):
    """Why a response is incomplete."""

    reason: IncompleteReason


class InputDetails(ApiObject):
    """Details of the prompt's tokens: those not computed, because an earlier prompt began with them."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0  # always 0: OpenAI bills what its cache writes, Magnus does not


class OutputDetails(ApiObject):
    """Details of the answer's tokens: those of thinking, its tags included."""

    reasoning_tokens: int = 0


class Usage(ApiObject):
    """Tokens read and written."""

    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class Response(ApiObject):
    """OpenAI's Response."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: float | None
    status: RequestStatus
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int
    model: str
    output: list[OutputItem]
    usage: Usage | None
    temperature: float
    top_p: float
    metadata: dict[str, str]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    service_tier: ServiceTier = Field(description="The tier that serves it")
    store: bool = True
    text: dict[str, Any] = Field(default={"format": {"type": "text"}})
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field(default=[])
    top_logprobs: int = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    magnus: Magnus


class ResponseList(ListPage):
    """One page of responses."""

    data: list[Response]


class ReasonAnswer(ApiObject):
    """The answer to one question of why a response is not running; `blocks`: the response waits for this."""

    question: str
    blocks: bool
    sentence: str


class WaitingReasons(ApiObject):
    """Why a response is not running, question by question in the order in which they are decided."""

    object: Literal["response.why"] = "response.why"
    id: str
    status: RequestStatus
    answers: list[ReasonAnswer]


class Deleted(DeletedObject):
    """A deleted response."""

    object: Literal["response"] = "response"


def response_of(view: RequestView, place: QueuePlace, waits_for: str | None = None) -> Response:
    """Returns the Response object of a stored request; if its body or its answer cannot be read, `error` says so."""
    request = view.request
    error = _error(request.error) if request.status is RequestStatus.failed else None
    try:
        body = read_body(request.body)
    except UnreadableBody as unreadable:
        body, error = RequestBody(), error or ResponseError(code="unreadable_request", message=str(unreadable))
    try:
        output = output_items(view, body)
    except Exception:  # one unreadable answer must not make a whole list fail
        log.exception("stored answer not readable", request=request.id)
        output, error = [], error or UNREADABLE_ANSWER
    forced, kinds = body.tool_choice.function, {tool.name: "custom" for tool in body.tools if tool.custom}
    incomplete = incomplete_reason(view)
    return Response(
        id=request.id,
        created_at=int(request.arrived_at.timestamp()),
        completed_at=request.finished_at.timestamp() if request.finished_at else None,
        status=request.status,
        background=body.background,
        error=error,
        incomplete_details=None if incomplete is None else IncompleteDetails(reason=incomplete),
        instructions=(request.instructions if body.instructions is None else body.instructions) or None,
        max_output_tokens=request.limit_tokens,
        model=request.model,
        output=output,
        usage=_usage(view),
        temperature=body.sampling.temperature,
        top_p=body.sampling.top_p,
        metadata=body.metadata,
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        service_tier=request.tier,
        store=body.store,
        tool_choice={"type": kinds.get(forced, "function"), "name": forced} if forced else body.tool_choice.mode,
        tools=[_tool(tool) for tool in body.tools],
        truncation=body.truncation,
        text={"format": _format(body)},
        top_logprobs=body.top_logprobs or 0,
        magnus=magnus_of(view, place, body, waits_for),
    )


def retry_after_s(view: RequestView, place: QueuePlace) -> int | None:
    """Returns the seconds until the client should poll again, or None once the request is final.

    The wait ends halfway between the ETA, which half of the answers miss, and the interval's upper bound, which one in
    twenty misses, so that about four of five clients find their answer when they come back.
    """
    if view.request.status.final:
        return None
    if place.eta_at is None:
        return MIN_RETRY_S
    likely_at = place.eta_at + ((place.high_at or place.eta_at) - place.eta_at) / 2
    return min(max(math.ceil((likely_at - view.now).total_seconds()), MIN_RETRY_S), MAX_RETRY_S)


def magnus_of(view: RequestView, place: QueuePlace, body: RequestBody, waits_for: str | None = None) -> Magnus:
    """Returns the `magnus` object of a stored request."""
    request, batch = view.request, view.batch
    tokens = view.tokens_so_far
    if request.output_tokens is not None:
        tokens = request.output_tokens
    elif batch is not None and request.status is RequestStatus.in_progress and not batch.joins:
        tokens = min(tokens + batch.progress_tokens, request.limit_tokens)
    left, low, high = tokens_left(request, place, tokens) or (None, None, None)
    return Magnus(
        application=request.application,
        arrived_at=request.arrived_at.timestamp(),
        prompt_tokens=request.prompt_tokens,
        predicted_tokens=request.predicted_tokens,
        predicted_upper_tokens=request.predicted_upper_tokens,
        predictor_version=request.predictor_version,
        tokens_so_far=tokens,
        tokens_left=left,
        tokens_left_low=low,
        tokens_left_high=high,
        queue_position=place.position,
        eta_s=_seconds(view, place.eta_at),
        eta_low_s=_seconds(view, place.low_at),
        eta_high_s=_seconds(view, place.high_at),
        eta_at=place.eta_at.timestamp() if place.eta_at else None,
        waits_for=waits_for,
        batch=request.batch_id,
        worker=batch.worker if batch else None,
        attempts=request.attempts,
        twin_of=request.twin_of,
        landed=request.finish_reason == "landed",
        incomplete_reason=incomplete_reason(view),
        dropped_tools=list(body.dropped_tools),
        promise=_promise(view, place),
    )


def _promise(view: RequestView, place: QueuePlace) -> ShownPromise | None:
    sold = view.promise
    if sold is None:
        return None
    return ShownPromise(
        promised_by=None if sold.promised_by is None else sold.promised_by.timestamp(),
        probability=sold.probability,
        price=sold.price,
        kept=is_kept(view),
        at_risk=is_at_risk(view, place),
    )


def _seconds(view: RequestView, at: datetime | None) -> float | None:
    return None if at is None else round(max(0.0, (at - view.now).total_seconds()), 3)


def _tool(tool: StoredTool) -> dict[str, Any]:
    shown = _with_object(tool.model_dump(exclude={"custom"}), "parameters")
    if not tool.custom:
        return {"type": "function", **shown}
    pattern = shown["parameters"]["properties"][CUSTOM_INPUT].get("pattern")  # `^(?:` CLIENT'S PATTERN `)$`
    held_to = {"type": "grammar", "syntax": "regex", "definition": pattern[4:-2]} if pattern else {"type": "text"}
    return {"type": "custom", "name": tool.name, "description": tool.description, "format": held_to}


def _format(body: RequestBody) -> dict[str, Any]:
    if body.format is None:
        return {"type": "text"}
    if body.format.type != "json_schema":
        return body.format.model_dump(include={"type", "pattern", "grammar"}, exclude_none=True)
    return _with_object(body.format.model_dump(by_alias=True, exclude={"pattern", "grammar"}), "schema")


def _with_object(stored: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the dict with its field `name` parsed, which is JSON as text or None."""
    return {**stored, name: json.loads(stored[name] or "null")}


def _usage(view: RequestView) -> Usage | None:
    one = view.request
    if one.output_tokens is None:
        return None
    return usage_of(one.prompt_tokens, one.cached_tokens or 0, one.output_tokens, one.reasoning_tokens or 0)


def incomplete_reason(view: RequestView) -> IncompleteReason | None:
    """Returns why an answer is incomplete, None if it is not."""
    if view.request.status is not RequestStatus.incomplete:
        return None
    return "loop" if view.request.finish_reason == "loop" else "max_output_tokens"


def usage_of(input_tokens: int, cached_tokens: int, output_tokens: int, reasoning_tokens: int) -> Usage:
    """Returns these numbers of tokens with their total."""
    return Usage(
        input_tokens=input_tokens,
        input_tokens_details=InputDetails(cached_tokens=cached_tokens),
        output_tokens=output_tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=input_tokens + output_tokens,
    )


def _error(stored: dict[str, Any] | None) -> ResponseError:
    stored = stored or {}
    return ResponseError(code=stored.get("code", "server_error"), message=stored.get("message", "It failed."))
