"""Figures of a live run that the API does not show: gaps between batches, CPU shares, decision times, ETA errors."""

import json
import os
import statistics
import time
from pathlib import Path
from typing import Self

import psutil
from sqlalchemy import text

from benchmarks.harness import Json, percentile
from benchmarks.service_start import process_ids
from cli.hosting.service_files import RunningService
from models.connections.session import make_engine

ENGINES = ("worker", "peer", "paced")  # the names of processes that run a model begin with these
# The CPU share of the control plane is that of these processes.
CONTROL_PLANE = ("web", "planner", "predictor", "chores", "beat")

UNSUPERVISED = ("peer", "paced", "publisher")  # processes whose names begin with these are not restarted if they end

OPEN = text("select count(*) from requests where status in ('queued', 'in_progress')")

ANSWERED = text("select count(*) from requests where arrived_at >= to_timestamp(:since) and finished_at is not null")

DECISION = text("select (value->'decisions'->>'last_s')::float8 from service_state where name = 'planner'")

# A gap between two batches of a worker counts only if some request waited during the whole gap.
GAPS = text("""
    with spans as (
        select worker, unnest(range_agg(tstzrange(started_at, finished_at))) as span
        from batches where status = 'finished' and finished_at > started_at
            and started_at >= to_timestamp(:since) group by worker
    ), gaps as (
        select upper(lag(span) over by_worker) as since, lower(span) as until
        from spans window by_worker as (partition by worker order by lower(span))
    )
    select extract(epoch from until - since)::float8 as gap_s from gaps
    where since is not null and exists (
        select from requests where arrived_at < since and started_at >= until
    )
""")

ETA_ERRORS = text("""
    select abs((eta->>'eta_s')::float8 - took_s) / greatest(took_s, 0.001) as error
    from requests, lateral (select extract(epoch from finished_at - arrived_at)::float8 as took_s) as took
    where status = 'completed' and eta is not null and arrived_at >= to_timestamp(:since)
""")


LEARNED = text("""
    select (select count(*) from requests where status in ('completed', 'incomplete')) as answers,
        (select count(*) from model_versions where kind = 'length') as length_predictors,
        (select count(*) from model_versions where kind = 'serving_time') as serving_time_estimators,
        (select max((report->'curves'->>'version')::int) from workers) as step_costs,
        (select max((report->'curves'->>'error')::float8) from workers) as step_error
""")


class ServiceMonitor:
    """Samples a service while it serves one run; the measurement of CPU time begins when its context is entered."""

    def __init__(self, service: RunningService, state_dir: Path) -> None:
        self._engine = make_engine(service.database_url, pool_size=1, name="benchmark")
        self._processes = {name: psutil.Process(pid) for name, pid in process_ids(state_dir).items()}
        self._state_dir = state_dir
        self._decisions: list[float] = []
        self._cpu_s: dict[str, float] = {}
        self._wall_s = 0.0

    def __enter__(self) -> Self:
        self._before = self._cpu_times()
        self._started_at = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    def open_requests(self) -> int:
        """Return the number of requests that are queued or in progress."""
        with self._engine.connect() as connection:
            return int(connection.execute(OPEN).scalar_one())

    def sample(self) -> None:
        """Record how long the planner's last decision took; raises RuntimeError if a process has ended for good."""
        for name, process in self._processes.items():
            if name.startswith(UNSUPERVISED) and not _lives(process):
                raise RuntimeError(f"{name} has ended, so that its requests stay open")
        with self._engine.connect() as connection:
            decision_s = connection.execute(DECISION).scalar()
        if decision_s:
            self._decisions.append(decision_s)

    def learned(self) -> Json:
        """Return the numbers of answers and published versions, and the largest error of the workers' learned costs."""
        with self._engine.connect() as connection:
            return dict(connection.execute(LEARNED).one()._mapping)

    def threads(self) -> dict[str, int]:
        """Return the number of threads with which each worker's model computes, from its log."""
        found = {}
        for log in sorted((self._state_dir / "logs").glob("worker-*.log")):
            said = [json.loads(line) for line in log.read_text().splitlines() if '"threads"' in line]
            if said:
                found[log.stem] = int(said[-1]["threads"])
        return found

    def stop_clock(self) -> None:
        """End the measurement of CPU time; call it before the benchmark itself uses the service."""
        self._wall_s = time.monotonic() - self._started_at
        after = self._cpu_times()
        self._cpu_s = {name: after[name] - self._before[name] for name in after}

    def cpu_ms_a_second(self) -> Json:
        """Return the CPU milliseconds a second that each process used until the clock was stopped."""
        return {name: round(1000 * cpu_s / self._wall_s, 1) for name, cpu_s in sorted(self._cpu_s.items())}

    def figures(self, since: float) -> Json:
        """Return CPU as shares of all cores, gaps and decisions in ms, ETA errors as shares of the response time.

        Gaps are those of batches that started at `since` or later, ETA errors of requests that arrived then or later.
        """
        with self._engine.connect() as connection:
            gaps = sorted(1000 * row.gap_s for row in connection.execute(GAPS, {"since": since}))
            errors = [row.error for row in connection.execute(ETA_ERRORS, {"since": since})]
        whole_s = self._wall_s * (os.cpu_count() or 1)
        engine_s = sum(cpu_s for name, cpu_s in self._cpu_s.items() if name.startswith(ENGINES))
        used_s = sum(self._cpu_s.values())
        requests = max(1, self._answered(since))
        return {
            "cpu_ms_a_request": {name: round(1000 * s / requests, 3) for name, s in sorted(self._cpu_s.items())},
            "gap_ms_p50": percentile(gaps, 0.5),
            "gap_ms_p99": percentile(gaps, 0.99),
            "decision_ms": 1000 * statistics.median(self._decisions) if self._decisions else None,
            "worker_cpu_share": engine_s / whole_s,
            "control_cpu_share": sum(self._cpu_s.get(name, 0.0) for name in CONTROL_PLANE) / whole_s,
            "cpu_outside_engine": 1 - engine_s / used_s if used_s else None,
            "cpu_share": {name: round(cpu_s / whole_s, 4) for name, cpu_s in sorted(self._cpu_s.items())},
            "eta_error": statistics.median(errors) if errors else None,
        }

    def _answered(self, since: float) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(ANSWERED, {"since": since}).scalar_one())

    def _cpu_times(self) -> dict[str, float]:
        return {name: sum(map(_cpu_s, _with_children(process))) for name, process in self._processes.items()}


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
