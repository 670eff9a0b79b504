"""/healthz, /readyz and /metrics: open without a key, show no request's content, and read all processes' figures."""

import fcntl
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from apiflask import APIBlueprint
from flask import Flask, Response, current_app, g, jsonify, redirect, request, url_for
from prometheus_client import CollectorRegistry, Histogram, values
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from sqlalchemy.orm import Session, sessionmaker
from werkzeug.wrappers import Response as BaseResponse

from models import planner_state
from models.connections.schema_state import schema_state
from models.operations import process_heartbeats, promise_book, request_histograms
from models.operations.fleet_use import workers_in_use
from models.operations.minute_history import ended_totals
from models.operations.operator_overview import RequestCounts, request_counts, what_is_missing
from models.operations.process_heartbeats import Process
from models.operations.promise_book import PromiseSums
from models.operations.request_histograms import HISTOGRAMS, LABELS, RequestSeries
from models.operations.scaling_signals import ScalingSignal, read_signals
from models.planning.queue_snapshot import QueueSnapshot, read_queue_snapshot
from models.registered_workers import TAKES_BATCHES, RegisteredWorker
from settings import VERSION
from webapp.context.app_context import AppContext, current_context

health_pages = APIBlueprint("health", __name__, enable_openapi=False)
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}  # the values of the label `method`
# Edges in seconds: close together for calls that do not wait, then far apart up to MAGNUS_WAIT_S's default. Not tuned.
DURATION_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

POOL_HELD_S = 60.0  # a call holds a connection for a statement or two, of 2 s at most. Not tuned otherwise


@health_pages.get("/version")
def version() -> Response:
    """Answers this service's version, for clients that ask each server for its own."""
    return jsonify(version=VERSION)


@health_pages.get("/ping")
@health_pages.get("/health")
@health_pages.get("/healthz")
def healthz() -> tuple[Response, int]:
    """Answers 200 as long as this process works, and 503 if its calls hold all database connections for too long."""
    held_s = current_context().pool_watch.held_s()
    if held_s > POOL_HELD_S:
        return jsonify(status="held", reason=f"no call got a database connection for {held_s:.0f} s"), 503
    return jsonify(status="ok"), 200


@health_pages.get("/readyz")
def readyz() -> tuple[Response, int]:
    """Answers 200 if requests can be accepted, that is, if the database answers with a usable schema; else 503.

    The status `degraded` lists what is missing to serve requests. It is answered with 200, because a load balancer that
    removed every web process would turn a delay into an outage.
    """
    with current_context().sessions() as session:
        schema = schema_state(session.connection())
        if schema.problem is not None:
            return jsonify(status="not ready", reason=schema.problem, schema=schema.described), 503
        missing = what_is_missing(session, current_context().worker_alive_s)
    status = "degraded" if missing else "ready"
    return jsonify(status=status, missing=missing, schema=schema.described), 200


@health_pages.get("/favicon.ico")
def favicon() -> BaseResponse:
    """Redirects to the icon, for which browsers ask by themselves."""
    return redirect(url_for("static", filename="icon.svg"))


@health_pages.get("/metrics", strict_slashes=True)  # a proxy that hides this page may compare the whole path
def metrics() -> Response:
    """Returns all figures in Prometheus's text format; 503 with the reason while the database cannot be used."""
    with current_context().sessions() as session:
        unusable = schema_state(session.connection()).problem
    if unusable is not None:
        return Response(unusable, 503, content_type="text/plain; charset=utf-8")
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Response(encode(current_app.extensions["metrics"]), content_type=content_type)


def register_metrics(app: Flask, context: AppContext) -> None:
    """Registers the service's figures, and durations by route and status, over the web processes of this host."""
    # one registry for all figures, because an exposition in OpenMetrics has one end mark
    registry = CollectorRegistry()
    registry.register(ServiceCollector(context.sessions, context.worker_alive_s))
    summed = "PROMETHEUS_MULTIPROC_DIR" in os.environ
    if summed:
        number = free_number(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    app.extensions["metrics"] = registry
    durations = Histogram(
        "magnus_http_seconds",
        "Duration of HTTP requests",
        ["method", "route", "status"],
        buckets=DURATION_EDGES_S,
        registry=None if summed else registry,  # the collector above reads the durations from that directory
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


def free_number(directory: Path) -> int:
    """Returns the number of this process's file of metrics: the least number that no other living process has.

    The process that follows a killed one thus goes on counting in the killed one's file, which would stay for ever.
    """
    number = 0
    while True:
        lock = os.open(directory / f"{number}.lock", os.O_WRONLY | os.O_CREAT)  # open until the process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            number += 1
        else:
            return number


class ServiceCollector(Collector):
    """The figures of the whole service, which each scrape reads from the database."""

    def __init__(self, sessions: sessionmaker[Session], worker_alive_s: float) -> None:
        self._sessions = sessions
        self._worker_alive_s = worker_alive_s

    def collect(self) -> Iterator[Metric]:
        """Yields gauges of this moment, histograms and counters; ended requests count once their minute is closed."""
        with self._sessions() as session:
            now = request_counts(session)
            finished = ended_totals(session)
            found = process_heartbeats.processes(session.connection())
            snapshot = read_queue_snapshot(session)
            tau = planner_state.planner_inputs(session.connection()).rank_correlation.tau
            fleet = workers_in_use(session)
            signals = read_signals(session)
            histograms = request_histograms.read(session)
            promised = promise_book.of_models(session)
        yield from _requests(now)
        yield from _scaling(signals)
        yield from _histograms(histograms)
        yield from _promises(promised)
        if snapshot is not None:
            yield from _obstacles(snapshot)
        yield from _processes(found, [worker for worker in fleet if worker.lives(self._worker_alive_s)])
        yield from _planner(snapshot, tau)
        yield from _workers(fleet, self._worker_alive_s)
        ended = CounterMetricFamily("magnus_requests_finished", "Requests that ended, by state", labels=["status"])
        for status, count in finished.items():
            ended.add_metric([status], count)
        yield ended


def _requests(now: RequestCounts) -> Iterator[Metric]:
    yield GaugeMetricFamily("magnus_requests_queued", "Requests that wait", now.queued)
    yield GaugeMetricFamily("magnus_requests_held", "Lines of paused batches, which wait for that", now.held)
    yield GaugeMetricFamily("magnus_batch_lines_unread", "Lines of batches that are no requests yet", now.unread_lines)
    yield GaugeMetricFamily("magnus_requests_unstarted", "Those whose batch was sent and not begun", now.unstarted)
    yield GaugeMetricFamily("magnus_requests_in_progress", "Other requests in an open batch", now.running)
    yield GaugeMetricFamily("magnus_requests_unpredicted", "Requests that wait for a predictor", now.unpredicted)
    yield GaugeMetricFamily("magnus_oldest_waiting_seconds", "Age of the oldest that waits", now.oldest_s or 0.0)
    yield GaugeMetricFamily("magnus_answers_last_minute", "Answers of the last 60 s", now.finished_minute)
    yield GaugeMetricFamily("magnus_answer_tokens_last_minute", "Tokens of those answers", now.tokens_minute)


def _scaling(signals: Mapping[str, ScalingSignal]) -> Iterator[Metric]:
    work = GaugeMetricFamily(
        "magnus_predicted_work_seconds", "Seconds in which one worker would serve all that waits", labels=["model"]
    )
    wanted = GaugeMetricFamily(
        "magnus_workers_wanted", "Workers that MAGNUS_TARGET_RESPONSE_S needs now", labels=["model"]
    )
    for model, signal in signals.items():
        work.add_metric([model], signal.work_s)
        wanted.add_metric([model], signal.wanted)
    yield from (work, wanted)


def _histograms(series: Iterable[RequestSeries]) -> Iterator[Metric]:
    """Yields the histograms of all answered requests, by model, weight of the tenant and tier."""
    families = {
        name: HistogramMetricFamily(f"magnus_{name}", kind.help, labels=list(LABELS))
        for name, kind in HISTOGRAMS.items()
    }
    for one in series:
        edges = [*map(floatToGoString, HISTOGRAMS[one.name].edges), "+Inf"]
        buckets = list(zip(edges, accumulate(one.counts), strict=True))
        families[one.name].add_metric(one.labels, buckets, one.sum)
    yield from families.values()


def _promises(sums: Iterable[tuple[str, PromiseSums]]) -> Iterator[Metric]:
    """Yields the promises of the last day by model and level, and whether fewer were kept than by chance."""
    by = ["model", "probability"]
    sold = GaugeMetricFamily("magnus_promises_due", "Promises whose time ended in the last day", labels=by)
    kept = GaugeMetricFamily("magnus_promises_kept", "Those of them that were kept", labels=by)
    short = GaugeMetricFamily("magnus_promises_short", "1: the kept share is two standard errors too low", labels=by)
    for model, one in sums:
        labels = [model, f"{one.probability:g}"]
        sold.add_metric(labels, one.sold)
        kept.add_metric(labels, one.kept)
        short.add_metric(labels, one.short)
    yield from (sold, kept, short)


def _processes(found: Iterable[Process], workers: Collection[RegisteredWorker]) -> Iterator[Metric]:
    alive = GaugeMetricFamily("magnus_processes_alive", "Processes with a fresh heartbeat", labels=["process"])
    failing = GaugeMetricFamily("magnus_processes_failing", "Those whose steps fail", labels=["process"])
    silent = GaugeMetricFamily(
        "magnus_heartbeat_age_seconds", "Age of the newest heartbeat of this kind of process", labels=["process"]
    )
    ahead = GaugeMetricFamily(
        "magnus_clock_ahead_seconds", "A host's clock minus the database's, the furthest off", labels=["process"]
    )
    for kind in process_heartbeats.NEEDED:
        of_kind = [process for process in found if process.kind == kind]
        alive.add_metric([kind], sum(not process.silent for process in of_kind))
        failing.add_metric([kind], len(process_heartbeats.failing(of_kind)))
        if of_kind:
            silent.add_metric([kind], min(process.heartbeat_age_s for process in of_kind))
            ahead.add_metric([kind], max((process.clock_ahead_s for process in of_kind), key=abs))
    if workers:
        ahead.add_metric(["worker"], max((worker.report.clock_ahead_s for worker in workers), key=abs))
    yield from (alive, failing, silent, ahead)


def _planner(snapshot: QueueSnapshot | None, tau: float | None) -> Iterator[Metric]:
    """Yields the figures of the leading planner and of predictions, if there are recent ones."""
    if snapshot is not None:
        decision_s = snapshot.decisions.last_s
        yield GaugeMetricFamily("magnus_planner_decision_seconds", "The planner's last decision", decision_s)
        yield GaugeMetricFamily(
            "magnus_backlog_seconds", "Until a worker is free for a new one", snapshot.queue.backlog_s
        )
    if tau is not None:
        yield GaugeMetricFamily("magnus_prediction_tau", "Kendall's tau of recent predictions and lengths", tau)


def _obstacles(snapshot: QueueSnapshot) -> Iterator[Metric]:
    """Yields the planner's reasons for not giving requests to workers."""
    refuses = "1: the broker takes no messages of the planner"
    yield GaugeMetricFamily("magnus_broker_refuses", refuses, snapshot.decisions.broker_error is not None)
    waiting = "Requests that wait for a model without a worker"
    yield GaugeMetricFamily("magnus_requests_unserved", waiting, sum(snapshot.unserved.values()))


def _workers(fleet: Collection[RegisteredWorker], alive_s: float) -> Iterator[Metric]:
    alive, deaf = sum(worker.lives(alive_s) for worker in fleet), sum(worker.not_consuming for worker in fleet)
    yield GaugeMetricFamily("magnus_workers_alive", "Workers with a fresh heartbeat", alive)
    yield GaugeMetricFamily("magnus_workers_not_consuming", "Workers that take none of their messages", deaf)
    up = GaugeMetricFamily("magnus_worker_up", "1: it serves or could; 0: stopped, lost, set aside", labels=["worker"])
    age = GaugeMetricFamily("magnus_worker_heartbeat_age_seconds", "Age of its heartbeat", labels=["worker"])
    rows = GaugeMetricFamily("magnus_worker_rows", "Rows given to it that have not ended", labels=["worker"])
    guessed = CounterMetricFamily("magnus_guessed_tokens", "Tokens guessed where answers copy text", labels=["worker"])
    right = CounterMetricFamily("magnus_right_guesses", "Those of them that the answers then had", labels=["worker"])
    loops = CounterMetricFamily("magnus_stopped_loops", "Answers ended as they repeated themselves", labels=["worker"])
    saved = CounterMetricFamily("magnus_loop_tokens_saved", "Tokens they had left to their limits", labels=["worker"])
    for worker in fleet:
        state = worker.state(alive_s)
        up.add_metric([worker.name], state in TAKES_BATCHES)
        rows.add_metric([worker.name], worker.load.rows)
        guessed.add_metric([worker.name], worker.report.guessed_tokens)
        right.add_metric([worker.name], worker.report.right_guesses)
        loops.add_metric([worker.name], worker.report.stopped_loops)
        saved.add_metric([worker.name], worker.report.saved_tokens)
        if not worker.stopped:
            age.add_metric([worker.name], worker.heartbeat_age_s)
    yield from (up, age, rows, guessed, right, loops, saved)
