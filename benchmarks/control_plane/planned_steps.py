"""Takes a planner's steps beside a fleet that exists in the database only; `planner_costs` starts this process.

Reads `steps NUMBER` from its input and writes the CPU milliseconds a step of its own thread and of the planner's
connection in Postgres. Database and broker come from the environment. A clock in the database, which replaces
Postgres's, advances by STEP_S before each step, so that a busy machine does not change what a step decides.
"""

import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, text

from celery_config import TICK_S
from models.connections.session import make_engine
from models.stored_values import to_json
from processes.celery.celery_app import celery_service
from processes.celery.messages import Messages
from processes.planner_rules import planner_rules
from scheduling.costs import LearnedCurves, ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import WorkerFacts, WorkerReport
from tasks.planning.leader import Leader
from tasks.planning.planner_loop import JOINING_INTERVAL_S, PlannerLoop, PlanQueue

RATE = float(os.environ.get("BENCHMARK_RATE", "100"))  # requests a second
WORKERS = int(os.environ.get("BENCHMARK_WORKERS", "2"))
STEP_S = JOINING_INTERVAL_S  # a planner whose workers decode takes a step at this interval
ITERATION_S = 0.01  # an iteration of every worker takes this long, whatever its rows; any value works
LEARNS_EVERY = round(3 / STEP_S)  # the steps after which a worker reports new curves; real workers do so every 3 s
NAME = "magnus planner"

# The functions of this schema hide Postgres's own, because the schema stands first in the search path.
CLOCK = """
    create schema if not exists benchmark;
    create table if not exists benchmark.clock (at timestamptz);
    insert into benchmark.clock select pg_catalog.clock_timestamp();
    create or replace function benchmark.clock_timestamp() returns timestamptz stable language sql
        as 'select at from benchmark.clock';
    create or replace function benchmark.statement_timestamp() returns timestamptz stable language sql
        as 'select at from benchmark.clock';
    do $$ begin execute format('alter database %I set search_path = benchmark, pg_catalog, public',
        current_database()); end $$;
"""
COME = """
    insert into requests (id, arrived_at, tenant, model, application, instructions, input, body, prompt_tokens,
        input_tokens, limit_tokens, predicted_tokens, predicted_upper_tokens)
    select 'resp_' || gen_random_uuid(), clock_timestamp(), 'acme', 'small', 'copy', 'Repeat the words.',
        'one two three', '{}', 20 + length, 5 + length, 512, 5 + length, 10 + 2 * length
    from unnest(cast(:lengths as int[])) as length
"""
PROGRESS = """
    update batches set status = 'running', fence = 1, started_at = coalesce(started_at, clock_timestamp()),
        lease_until = clock_timestamp() + interval '10 s', progress_tokens = case when started_at is null then 0
            else (extract(epoch from clock_timestamp() - started_at) / :iteration_s)::int end
    where status in ('assigned', 'running')
"""
ANSWER = """
    update requests r set status = 'completed', finished_at = clock_timestamp(), output_tokens = r.input_tokens
    from batches b where b.id = r.batch_id and b.status = 'running' and r.status = 'in_progress'
        and b.progress_tokens >= r.input_tokens
"""
END = """
    update batches b set status = 'finished', finished_at = clock_timestamp(), serving_s = 0.3
    where b.status = 'running'
        and not exists(select from requests r where r.batch_id = b.id and r.status = 'in_progress')
"""
ANNOUNCE = """
    insert into workers (name, model, longest_row_tokens, facts)
    values (:name, 'small', :longest, cast(:facts as jsonb))
"""


class StoredFleet:
    """A fleet that exists in the database only: rows for its workers, and requests that arrive and are answered."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._random = connection, random.Random(1)
        self._steps, self._owed = 0, 0.0
        memory = KvMemory(32_768, 1, paged=True, block_tokens=32, max_rows=64)
        for number in range(1, WORKERS + 1):
            facts = WorkerFacts(f"worker-{number}", "small", "cpu", memory)
            self._run(ANNOUNCE, name=facts.name, longest=memory.longest_row_tokens, facts=to_json(facts))
        self._report()

    def pass_time(self) -> None:
        """Let STEP_S pass: requests arrive, rows decode and end, workers send heartbeats."""
        self._run("update benchmark.clock set at = at + make_interval(secs => :step_s)", step_s=STEP_S)
        self._steps, self._owed = self._steps + 1, self._owed + RATE * STEP_S
        coming = int(self._owed)
        self._owed -= coming
        self._run(COME, lengths=[round(min(self._random.lognormvariate(3.4, 0.6), 400)) for _ in range(coming)])
        self._run(PROGRESS, iteration_s=ITERATION_S)
        self._run(ANSWER)
        self._run(END)
        self._run("update workers set heartbeat_at = clock_timestamp()")
        if self._steps % LEARNS_EVERY == 0:
            self._report()

    def _report(self) -> None:
        noise = self._random.uniform(0.98, 1.02)
        curves = ServingCurves((1e-4, 1e-4, 0.0, 0.005), (1e-8 * noise, 1e-4 * noise, 0.0, 0.008 * noise))
        learned = LearnedCurves(curves, error=0.05, windows=50, version=1, typical=(20.0, 60.0))
        report = to_json(WorkerReport(curves=learned))
        self._run("update workers set report = cast(:report as jsonb)", report=report)

    def _run(self, statement: str, **values: Any) -> None:
        self._connection.execute(text(statement), values)


def cpu_ms(pids: list[int]) -> float:
    """Return the CPU milliseconds of these processes so far; Linux only."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e6


def main() -> None:
    """Take groups of steps until the input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    service = celery_service()
    settings, database_url = service.settings, service.database_url
    with make_engine(database_url, pool_size=1, name="benchmark", autocommit=True).connect() as connection:
        connection.connection.driver_connection.execute(CLOCK)  # type: ignore[union-attr]  # it is connected
    engine = make_engine(database_url, pool_size=1, name="benchmark", autocommit=True)
    patient = replace(planner_rules(settings), lead_s=3600.0)  # a process that waits for the CPU must not lose the lead
    leader = Leader(make_engine(database_url, pool_size=1, name=NAME, idle_in_transaction_s=3600.0), patient)
    planner = PlannerLoop(leader, Messages(service.app, service.redis_url), PlanQueue(), TICK_S)
    with engine.connect() as connection:
        fleet = StoredFleet(connection)
        planner.loop.step()
        found = connection.execute(text("select pid from pg_stat_activity where application_name = :n"), {"n": NAME})
        pids = [row.pid for row in found]
        for line in sys.stdin:
            number, own_s, postgres_ms = int(line.split()[1]), 0.0, 0.0
            for _ in range(number):
                fleet.pass_time()
                before_s, before_ms = time.thread_time(), cpu_ms(pids)
                planner.loop.step()
                own_s += time.thread_time() - before_s
                postgres_ms += cpu_ms(pids) - before_ms
            print(json.dumps([1e3 * own_s / number, postgres_ms / number]), flush=True)


if __name__ == "__main__":
    main()
