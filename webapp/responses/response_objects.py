"""The answers of /v1/responses: OpenAI's Response object with a `magnus` object in it."""

import json
import math
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from models.tables import RequestStatus
from request_body import RequestBody, UnreadableBody, read_body
from scheduling.request import ServiceTier, service_tier
from webapp.api_objects import ApiObject, DeletedObject, ListPage
from webapp.responses.output_items import OutputItem, output_items

MIN_RETRY_S = 1  # Retry-After has whole seconds
MAX_RETRY_S = 120  # OpenAI's clients honour Retry-After up to 120 s


class Magnus(ApiObject):
    """Fields of a response that OpenAI's API lacks; null while a value is unknown."""

    application: str
    arrived_at: float = Field(description="As a Unix time of the database's clock; `created_at` has whole seconds")
    prompt_tokens: int = Field(description="Tokens of the whole prompt, instructions included")
    predicted_tokens: int | None = Field(description="Predicted tokens of the answer, the median")
    predicted_upper_tokens: int | None = Field(description="Their upper quantile, what memory is reserved for")
    predictor_version: str | None
    tokens_so_far: int = Field(description="Tokens generated so far, by the last heartbeat")
    queue_position: int | None = Field(description="1 is served next; null when running, final or not yet placed")
    eta_s: float | None = Field(description="Seconds until the answer is expected")
    eta_low_s: float | None = Field(description="Lower bound of eta_s: nine of ten answers come between both bounds")
    eta_high_s: float | None = Field(description="Upper bound of eta_s")
    eta_at: float | None = Field(description="eta_s as a Unix time of the database's clock")
    batch: int | None = Field(description="The batch it is in, or was in last")
    worker: str | None
    attempts: int
    dropped_tools: list[str] = Field(
        default=[], description="Types of tools that were left out, because only OpenAI runs them"
    )


class ResponseError(ApiObject):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(ApiObject):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputDetails(ApiObject):
    """Details of the prompt's tokens: those not computed, because an earlier prompt began with them."""

    cached_tokens: int = 0


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


class Deleted(DeletedObject):
    """A deleted response."""

    object: Literal["response"] = "response"


def response_of(view: RequestView, place: QueuePlace) -> Response:
    """Returns the Response object of a stored request; if its stored body cannot be read, `error` says so."""
    request = view.request
    error = _error(request.error) if request.status is RequestStatus.failed else None
    try:
        body = read_body(request.body)
    except UnreadableBody as unreadable:
        body, error = RequestBody(), error or ResponseError(code="unreadable_request", message=str(unreadable))
    forced = body.tool_choice.function
    return Response(
        id=request.id,
        created_at=int(request.arrived_at.timestamp()),
        completed_at=request.finished_at.timestamp() if request.finished_at else None,
        status=request.status,
        background=body.background,
        error=error,
        incomplete_details=(
            IncompleteDetails(reason="max_output_tokens") if request.status is RequestStatus.incomplete else None
        ),
        instructions=(request.instructions if body.instructions is None else body.instructions) or None,
        max_output_tokens=request.limit_tokens,
        model=request.model,
        output=output_items(view, body),
        usage=_usage(view),
        temperature=body.sampling.temperature,
        top_p=body.sampling.top_p,
        metadata=body.metadata,
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        service_tier=service_tier(request.priority),
        store=body.store,
        tool_choice={"type": "function", "name": forced} if forced else body.tool_choice.mode,
        tools=[_with_object({"type": "function", **tool.model_dump()}, "parameters") for tool in body.tools],
        truncation=body.truncation,
        text={"format": _format(body)},
        top_logprobs=body.top_logprobs or 0,
        magnus=magnus_of(view, place, body),
    )


def retry_after_s(view: RequestView, place: QueuePlace) -> int | None:
    """Returns the seconds until the client should poll again, or None once the request is final.

    They end halfway between the ETA, which half of the answers miss, and the interval's upper bound, which one in
    twenty misses, so that about four of five clients find their answer when they come back.
    """
    if view.request.status.final:
        return None
    if place.eta_at is None:
        return MIN_RETRY_S
    likely_at = place.eta_at + ((place.high_at or place.eta_at) - place.eta_at) / 2
    return min(max(math.ceil((likely_at - view.now).total_seconds()), MIN_RETRY_S), MAX_RETRY_S)


def magnus_of(view: RequestView, place: QueuePlace, body: RequestBody) -> Magnus:
    """Returns the `magnus` object of a stored request."""
    request, batch = view.request, view.batch
    tokens = view.tokens_so_far
    if request.output_tokens is not None:
        tokens = request.output_tokens
    elif batch is not None and request.status is RequestStatus.in_progress and not batch.joins:
        tokens = min(tokens + batch.progress_tokens, request.limit_tokens)
    return Magnus(
        application=request.application,
        arrived_at=request.arrived_at.timestamp(),
        prompt_tokens=request.prompt_tokens,
        predicted_tokens=request.predicted_tokens,
        predicted_upper_tokens=request.predicted_upper_tokens,
        predictor_version=request.predictor_version,
        tokens_so_far=tokens,
        queue_position=place.position,
        eta_s=_seconds(view, place.eta_at),
        eta_low_s=_seconds(view, place.low_at),
        eta_high_s=_seconds(view, place.high_at),
        eta_at=place.eta_at.timestamp() if place.eta_at else None,
        batch=request.batch_id,
        worker=batch.worker if batch else None,
        attempts=request.attempts,
        dropped_tools=list(body.dropped_tools),
    )


def _seconds(view: RequestView, at: datetime | None) -> float | None:
    return None if at is None else round(max(0.0, (at - view.now).total_seconds()), 3)


def _format(body: RequestBody) -> dict[str, Any]:
    if body.format is None:
        return {"type": "text"}
    if body.format.type != "json_schema":
        return body.format.model_dump(include={"type", "pattern"}, exclude_none=True)
    return _with_object(body.format.model_dump(by_alias=True, exclude={"pattern"}), "schema")


def _with_object(stored: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the dict with its field `name`, a JSON object as text or None, as the object."""
    return {**stored, name: json.loads(stored[name] or "null")}


def _usage(view: RequestView) -> Usage | None:
    prompt, answer = view.request.prompt_tokens, view.request.output_tokens
    if answer is None:
        return None
    return Usage(
        input_tokens=prompt,
        input_tokens_details=InputDetails(cached_tokens=view.request.cached_tokens or 0),
        output_tokens=answer,
        output_tokens_details=OutputDetails(reasoning_tokens=view.request.reasoning_tokens or 0),
        total_tokens=prompt + answer,
    )


def _error(stored: dict[str, Any] | None) -> ResponseError:
    stored = stored or {}
    return ResponseError(code=stored.get("code", "server_error"), message=stored.get("message", "It failed."))
