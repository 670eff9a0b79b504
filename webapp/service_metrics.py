"""The figures of all processes for Prometheus, read from the database: one web process that is scraped tells them all.

Planner, predictor, workers, beat and trainer listen nowhere; what they do stands in their rows.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session, sessionmaker

from models.operations import process_heartbeats
from models.operations.fleet_use import WorkerUse, workers_in_use
from models.operations.minute_history import ended_totals
from models.operations.operator_overview import RequestCounts, request_counts, workers_not_consuming
from models.operations.process_heartbeats import Process
from models.planning import planner_state
from models.planning.queue_position import QueueSnapshot, read_queue_snapshot


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
            deaf = workers_not_consuming(session)
            snapshot = read_queue_snapshot(session)
            tau = planner_state.planner_inputs(session.connection()).tau
            fleet = workers_in_use(session)
        yield from _requests(now)
        yield from _processes(found)
        yield from _planner(snapshot, tau)
        yield from _workers(fleet, self._worker_alive_s)
        yield GaugeMetricFamily("magnus_workers_not_consuming", "Workers that take none of their messages", len(deaf))
        ended = CounterMetricFamily("magnus_requests_finished", "Requests that ended, by state", labels=["status"])
        for status, count in finished.items():
            ended.add_metric([status], count)
        yield ended


def _requests(now: RequestCounts) -> Iterator[Metric]:
    yield GaugeMetricFamily("magnus_requests_queued", "Requests that wait", now.queued)
    yield GaugeMetricFamily("magnus_requests_in_progress", "Requests in an assigned or running batch", now.running)
    yield GaugeMetricFamily("magnus_requests_unpredicted", "Requests that wait for a predictor", now.unpredicted)
    yield GaugeMetricFamily("magnus_oldest_waiting_seconds", "Age of the oldest that waits", now.oldest_s or 0.0)
    yield GaugeMetricFamily("magnus_answers_last_minute", "Answers of the last 60 s", now.finished_minute)
    yield GaugeMetricFamily("magnus_answer_tokens_last_minute", "Tokens of those answers", now.tokens_minute)
    yield GaugeMetricFamily("magnus_workers_alive", "Workers with a fresh heartbeat", now.workers_alive)


def _processes(found: Iterable[Process]) -> Iterator[Metric]:
    alive = GaugeMetricFamily("magnus_processes_alive", "Processes with a fresh heartbeat", labels=["process"])
    silent = GaugeMetricFamily(
        "magnus_heartbeat_age_seconds", "Age of the newest heartbeat of this kind of process", labels=["process"]
    )
    ahead = GaugeMetricFamily(
        "magnus_clock_ahead_seconds", "A host's clock minus the database's, the furthest off", labels=["process"]
    )
    for kind in process_heartbeats.NEEDED:
        of_kind = [process for process in found if process.kind == kind]
        alive.add_metric([kind], sum(not process.silent for process in of_kind))
        if of_kind:
            silent.add_metric([kind], min(process.heartbeat_age_s for process in of_kind))
            ahead.add_metric([kind], max((process.clock_ahead_s for process in of_kind), key=abs))
    yield from (alive, silent, ahead)


def _planner(snapshot: QueueSnapshot | None, tau: float | None) -> Iterator[Metric]:
    """What the leading planner and the predictors say of themselves; nothing while they do not."""
    if snapshot is not None:
        decision_s = snapshot.state.get("decision_s", 0.0)
        yield GaugeMetricFamily("magnus_planner_decision_seconds", "The planner's last decision", decision_s)
        yield GaugeMetricFamily("magnus_backlog_seconds", "Until a worker is free for a new one", snapshot.backlog_s)
    if tau is not None:
        yield GaugeMetricFamily("magnus_prediction_tau", "Kendall's tau of recent predictions and lengths", tau)


def _workers(fleet: Iterable[WorkerUse], alive_s: float) -> Iterator[Metric]:
    up = GaugeMetricFamily("magnus_worker_up", "1: it serves or could; 0: stopped, lost, set aside", labels=["worker"])
    age = GaugeMetricFamily("magnus_worker_heartbeat_age_seconds", "Age of its heartbeat", labels=["worker"])
    rows = GaugeMetricFamily("magnus_worker_rows", "Rows given to it that have not ended", labels=["worker"])
    for worker in fleet:
        state = worker.state(alive_s)
        up.add_metric([worker.name], state in ("running", "idle"))
        rows.add_metric([worker.name], worker.rows)
        if not worker.stopped:
            age.add_metric([worker.name], worker.heartbeat_age_s)
    yield from (up, age, rows)
