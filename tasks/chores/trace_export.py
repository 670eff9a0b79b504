"""Sends a trace of each ended request, made from its stored instants, to an OpenTelemetry collector (OTLP in JSON)."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import structlog
from sqlalchemy import Engine

from models.connections.session import in_transaction
from models.ended_requests import TracedRequest, move_mark, read_traced
from settings import VERSION
from tasks.chores.upkeep import PART_FOR_S, repeat

AT_ONCE = 500  # requests in one call to the collector, about 700 KB. Not tuned
ANSWER_WITHIN_S = 5.0  # half of the time between two ticks of the upkeep, which waits for the collector. Not tuned
INTERNAL, SERVER = 1, 2  # kinds of spans
FAILED = 2  # the status code of a failed span
# as OpenAI's API calls them
FINISH_REASONS = {"eos": "stop", "landed": "stop", "stop": "stop", "limit": "length", "loop": "length"}
Attribute = str | int | list[str]
Json = dict[str, Any]

log = structlog.get_logger()


def export_traces(engine: Engine, url: str) -> None:
    """Sends traces of the requests that ended since the last call; traces that the collector refuses are sent again."""
    try:
        with httpx.Client(timeout=ANSWER_WITHIN_S, trust_env=False) as collector:
            repeat(partial(_export_some, engine, collector, url), AT_ONCE, PART_FOR_S)
    except httpx.HTTPError as error:
        log.warning("traces not exported", error=type(error).__name__)


def _export_some(engine: Engine, collector: httpx.Client, url: str) -> int:
    traced = in_transaction(engine, read_traced)(AT_ONCE)
    if traced is None:
        return 0
    collector.post(url, json=otlp(traced.requests)).raise_for_status()
    in_transaction(engine, move_mark)(traced)
    return len(traced.requests)


def otlp(ended: Iterable[TracedRequest]) -> Json:
    """Returns the traces of these requests as an OTLP export request."""
    spans = [span for request in ended for span in spans_of(request)]
    resource = {"attributes": _attributes({"service.name": "magnus", "service.version": VERSION})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "magnus"}, "spans": spans}]}]}


def spans_of(request: TracedRequest) -> Sequence[Json]:
    """Returns the span of the request from arrival to end, and the spans of its waiting and its service within it."""
    whole = _span(request, "request", request.arrived_ns, request.finished_ns, SERVER)
    operation = "text_completion" if request.raw else "chat"
    whole["name"] = f"{operation} {request.model}"  # as the GenAI conventions call it
    finish_reason = FINISH_REASONS.get(request.finish_reason or "")
    whole["attributes"] = _attributes(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "magnus",
            "gen_ai.request.model": request.model,
            "gen_ai.request.max_tokens": request.limit_tokens,
            "gen_ai.response.id": request.id,
            "gen_ai.response.model": request.model,
            "gen_ai.response.finish_reasons": None if finish_reason is None else [finish_reason],
            "gen_ai.usage.input_tokens": request.prompt_tokens,
            "gen_ai.usage.output_tokens": request.output_tokens,
            "magnus.tenant": request.tenant,
            "magnus.application": request.application,
            "magnus.status": request.status,
            "magnus.attempts": request.attempts,
            "error.type": request.error_code,
        }
    )
    if request.status == "failed":
        whole["status"] = {"code": FAILED}
    served_ns = request.finished_ns if request.started_ns is None else request.started_ns
    waiting = _span(request, "wait", request.arrived_ns, served_ns, INTERNAL, parent="request")
    waiting["attributes"] = _attributes({"magnus.predicted_tokens": request.predicted_tokens})
    if request.started_ns is None:
        return [whole, waiting]
    service = _span(request, "serve", request.started_ns, request.finished_ns, INTERNAL, parent="request")
    service["attributes"] = _attributes(
        {
            "magnus.worker": request.worker,
            "magnus.policy": request.policy,
            "magnus.batch": request.batch,
            "magnus.batch_size": request.batch_size,
        }
    )
    return [whole, waiting, service]


def trace_id(request_id: str) -> str:
    """Returns the 32 hexadecimal digits of the request's id."""
    return request_id.rpartition("_")[2]


def _span(request: TracedRequest, name: str, start_ns: int, end_ns: int, kind: int, parent: str | None = None) -> Json:
    span: Json = {
        "traceId": trace_id(request.id),
        "spanId": _span_id(request.id, name),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(max(start_ns, end_ns)),
    }
    return span if parent is None else {**span, "parentSpanId": _span_id(request.id, parent)}


def _span_id(request_id: str, name: str) -> str:
    return hashlib.sha256(f"{request_id}/{name}".encode()).hexdigest()[:16]


def _attributes(values: Mapping[str, Attribute | None]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Attribute) -> Json:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
