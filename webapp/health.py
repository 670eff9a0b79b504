"""/healthz, /readyz and /metrics for load balancers and Prometheus: they need no key and show no request's content."""

import os
import time
from collections.abc import Iterator

from apiflask import APIBlueprint
from flask import Flask, Response, current_app, g, jsonify, redirect, request, url_for
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session, sessionmaker
from werkzeug.wrappers import Response as BaseResponse

from models import process_heartbeats
from models.minute_history import ended_totals
from models.operator_overview import deaf_workers, request_counts, what_is_missing
from models.schema_upgrade import schema_state
from webapp.app_context import AppContext, current_context

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


class ServiceCollector(Collector):
    """The service's own figures, read from the database at every scrape."""

    def __init__(self, sessions: sessionmaker[Session], worker_alive_s: float) -> None:
        self._sessions = sessions
        self._worker_alive_s = worker_alive_s

    def collect(self) -> Iterator[Metric]:
        """Gauges of this moment, and a counter over all closed minutes."""
        with self._sessions() as session:
            now = request_counts(session, self._worker_alive_s)
            finished = ended_totals(session)
            found = process_heartbeats.processes(session.connection())
            deaf = deaf_workers(session)
        yield GaugeMetricFamily("magnus_requests_queued", "Requests that wait", now.queued)
        yield GaugeMetricFamily("magnus_requests_in_progress", "Requests in an assigned or running batch", now.running)
        yield GaugeMetricFamily("magnus_oldest_waiting_seconds", "Age of the oldest that waits", now.oldest_s or 0.0)
        yield GaugeMetricFamily("magnus_workers_alive", "Workers with a fresh heartbeat", now.workers_alive)
        yield GaugeMetricFamily("magnus_workers_not_consuming", "Workers that take none of their messages", len(deaf))
        alive = GaugeMetricFamily("magnus_processes_alive", "Processes with a fresh heartbeat", labels=["process"])
        silent = GaugeMetricFamily(
            "magnus_heartbeat_age_seconds", "Age of the newest heartbeat of this kind of process", labels=["process"]
        )
        for kind in process_heartbeats.NEEDED:
            of_kind = [process for process in found if process.kind == kind]
            alive.add_metric([kind], sum(not process.silent for process in of_kind))
            if of_kind:
                silent.add_metric([kind], min(process.heartbeat_age_s for process in of_kind))
        yield from (alive, silent)
        ended = CounterMetricFamily("magnus_requests_finished", "Requests that ended, by state", labels=["status"])
        for status, count in finished.items():
            ended.add_metric([status], count)
        yield ended


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
