"""/healthz, /readyz and /metrics for load balancers and Prometheus: they need no key and show no request's content."""

import os
import time

from apiflask import APIBlueprint
from flask import Flask, Response, current_app, g, jsonify, redirect, request, url_for
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from werkzeug.wrappers import Response as BaseResponse

from models.connections.schema_upgrade import schema_state
from models.operations.operator_overview import what_is_missing
from webapp.app_context import AppContext, current_context
from webapp.service_metrics import ServiceCollector

pages = APIBlueprint("health", __name__, enable_openapi=False)
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}  # the labels of a metric come from a fixed set
# Edges in seconds: fine where calls that do not wait end, coarse up to the default of MAGNUS_WAIT_S. Not tuned.
DURATION_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


@pages.get("/health")
@pages.get("/healthz")
def healthz() -> Response:
    """200 whenever this process answers."""
    return jsonify(status="ok")


@pages.get("/readyz")
def readyz() -> tuple[Response, int]:
    """200 if requests can be accepted: the database answers, and its schema serves this version; else 503.

    `degraded` names what is missing to serve them. It is 200 too: a balancer that took every web process away
    would make an outage of a delay.
    """
    with current_context().sessions() as session:
        schema = schema_state(session.connection())
        if schema.problem is not None:
            return jsonify(status="not ready", reason=schema.problem, schema=schema.described), 503
        missing = what_is_missing(session, current_context().worker_alive_s)
    status = "degraded" if missing else "ready"
    return jsonify(status=status, missing=missing, schema=schema.described), 200


@pages.get("/favicon.ico")
def favicon() -> BaseResponse:
    """Browsers ask for it on their own, whatever address they opened."""
    return redirect(url_for("static", filename="icon.svg"))


@pages.get("/metrics")
def metrics() -> Response:
    """Everything in Prometheus's text format."""
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    registries: list[CollectorRegistry] = current_app.extensions["metrics"]
    return Response(b"".join(encode(registry) for registry in registries), content_type=content_type)


def register_metrics(app: Flask, context: AppContext) -> None:
    """Collect the service's figures, and the durations of HTTP requests by route and status.

    With PROMETHEUS_MULTIPROC_DIR, as `magnus up` sets it, durations are summed over all web processes of this host.
    """
    service, registry = CollectorRegistry(), CollectorRegistry()
    service.register(ServiceCollector(context.sessions, context.worker_alive_s))
    shown = registry
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        shown = CollectorRegistry()
        MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    app.extensions["metrics"] = [service, shown]
    durations = Histogram(
        "magnus_http_seconds",
        "Duration of HTTP requests",
        ["method", "route", "status"],
        buckets=DURATION_EDGES_S,
        registry=registry,
    )

    @app.before_request
    def start() -> None:
        g.started_at = time.perf_counter()

    @app.after_request
    def observe_duration(response: Response) -> Response:
        method = request.method if request.method in METHODS else "other"  # a client may send any word
        route = request.url_rule.rule if request.url_rule else "none"
        started_at = g.get("started_at", time.perf_counter())
        durations.labels(method, route, response.status_code).observe(time.perf_counter() - started_at)
        return response
