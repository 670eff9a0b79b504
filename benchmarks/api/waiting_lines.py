"""Measures what a million waiting lines of bulk jobs cost the planner and the chores process, which counts them.

Ten tenants have two jobs of 50,000 lines each. All lines are read and predicted. Four workers at the pace of a
published GPU serve them, and other requests come one at a time.
"""

import time
from functools import partial
from statistics import median

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from benchmarks.api.measured_service import MeasuredFigure, MeasuredService, StartService, measured_service
from benchmarks.experiment import Experiment
from benchmarks.harness import Json, until
from benchmarks.inputs.filled_database import without_indexes
from cli.api_client import Client
from models.planning.queue_snapshot import read_queue_snapshot

LINES, SHORT_LINES, TENANTS, JOBS = 1_000_000, 20_000, 10, 20
WORKERS = 4
FETCHED_WITHIN_S = 120.0  # the planner needs 50 s if it reads 20,000 requests in each step and takes a step a second
MOST_MIB, MOST_CORES, MOST_WAIT_S = 2048, 0.5, 2.0  # a small host can spare this much beside its database
SERVED_FOR_S, ASKED = 30.0, 10
PROCESSES = ("planner", "chores")

JOB_ROWS = text("""
    insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, status, lines, last_line, next_line,
        queued, expires_at, in_progress_at)
    select 'batch_' || lpad(to_hex(n), 32, '0'), 'tenant-' || n % :tenants, '/v1/responses', 'file_none', '24h',
        'in_progress', :each, :each, :each + 1, :each, now() + interval '24 h', now()
    from generate_series(0, :jobs - 1) as n
""")
REQUEST_ROWS = text("""
    insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens, input_tokens,
        limit_tokens, arrived_at, predicted_tokens, predicted_upper_tokens, predictor_version, tier, deadline_at,
        job_id)
    select 'resp_b' || lpad(to_hex(n), 31, '0'), 'tenant-' || n % :jobs % :tenants, :model, 'application-' || n % :jobs,
        'Translate into German.', repeat('some words ', 3 + n % 10), '{"metadata": {}, "background": true, "stop": [],
          "sampling": {"temperature": 0, "top_p": 1, "top_k": 0, "seed": null}}', 20 + n % 40, 15 + n % 40, 256, now(),
        10 + n::bigint * 7919 % 200, 40 + n::bigint * 7919 % 200, 'length-1', 'flex', now() + interval '24 h',
        'batch_' || lpad(to_hex(n % :jobs), 32, '0')
    from generate_series(0, :lines - 1) as n
""")
LINE_ROWS = text("""
    insert into bulk_lines (job_id, line, custom_id, request_id)
    select 'batch_' || lpad(to_hex(n % :jobs), 32, '0'), n / :jobs + 1, n, 'resp_b' || lpad(to_hex(n), 31, '0')
    from generate_series(0, :lines - 1) as n
""")
ANSWERED = text("""
    select count(*) from requests
    where job_id is not null and finished_at > clock_timestamp() - cast(:since as interval)
""")
WAITED = text("select extract(epoch from started_at - arrived_at)::float8 from requests where id = :id")


def fill_lines(connection: Connection, lines: int, model: str) -> None:
    """Insert the jobs and their waiting lines into an empty database."""
    values = {"tenants": TENANTS, "jobs": JOBS, "each": lines // JOBS, "lines": lines, "model": model}
    with without_indexes(connection, "requests", "bulk_lines"):
        for statement in (JOB_ROWS, REQUEST_ROWS, LINE_ROWS):
            connection.execute(statement, {name: values[name] for name in statement.compile().params})
    connection.commit()


def measure(start: StartService, lines: int) -> Json:
    """Measure memory and CPU, and the seconds that other requests wait."""
    measured = MeasuredFigure()
    with start() as service, Client(service.url, service.key) as client:
        before = {name: service.memory_mib(name) for name in PROCESSES}
        with service.database.connect() as connection:
            fill_lines(connection, lines, client.model())
        began = time.monotonic()
        fetched = until(lambda: waiting_at_planner(service) > 0.95 * lines, 4 * FETCHED_WITHIN_S)
        fetched_s = time.monotonic() - began
        cpu_before, began = {name: service.cpu_s(name) for name in PROCESSES}, time.monotonic()
        waits = [wait_s(service, client) for _ in range(ASKED)]
        time.sleep(max(0.0, began + SERVED_FOR_S - time.monotonic()))
        seconds = time.monotonic() - began
        cores = {name: (service.cpu_s(name) - cpu_before[name]) / seconds for name in PROCESSES}
        mib = {name: service.memory_mib(name) for name in PROCESSES}
        with service.database.connect() as connection:
            answered = connection.execute(ANSWERED, {"since": f"{seconds} s"}).scalar_one()
    measured.figures = {
        "lines": lines,
        "fetched_s": fetched_s if fetched else None,
        "mib_before": before,
        "mib": mib,
        "cores": cores,
        "answered_per_s": answered / seconds,
        "waits_s": waits,
    }
    measured.below(f"{lines:,} waiting lines: until the planner has them", FETCHED_WITHIN_S, fetched_s, "s")
    for name in PROCESSES:
        more = f" ({before[name]:.0f} before)"
        measured.below(f"memory of {name}", MOST_MIB, mib[name], "MiB", more)
        more = f", while {answered / seconds:.3g} lines a second are answered"
        measured.below(f"CPU of {name}", MOST_CORES, cores[name], "cores", more)
    more = f" (median {median(waits):.3g})"
    measured.below("longest time until another request starts", MOST_WAIT_S, max(waits), "s", more)
    return measured.as_run()


def waiting_at_planner(service: MeasuredService) -> int:
    """Return the number of requests that wait in the planner's policies."""
    with Session(service.database) as session:
        snapshot = read_queue_snapshot(session)
    return 0 if snapshot is None else snapshot.queue.requests


def wait_s(service: MeasuredService, client: Client) -> float:
    """Send one request and wait for its answer; returns the seconds from its arrival until it started."""
    asked = {"model": client.model(), "instructions": "Repeat the text.", "input": "apple river cloud"}
    answer = client.wait(client.create(asked)["id"], 60.0)
    with service.database.connect() as connection:
        return float(connection.execute(WAITED, {"id": answer["id"]}).scalar_one())


WAITING_LINES = Experiment(
    {"long": LINES, "short": SHORT_LINES},
    {f"{WORKERS} paced workers": partial(measured_service, paced=WORKERS)},
    measure,
)
