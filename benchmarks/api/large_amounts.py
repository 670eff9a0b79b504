"""Measures the upload, validation and queueing of 50,000 lines, and the time to read pages of a million jobs.

The services have no workers. There are two files of lines: ordinary ones of about 300 bytes, and the largest file that
is accepted. The lines of the largest file are long by their metadata, so that their prompts still fit the bundled
model. The tenant that has half of the million jobs, and the dashboard, read them one call at a time.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
from sqlalchemy import text

from benchmarks.api.measured_service import MeasuredFigure, MeasuredService, StartService, measured_service
from benchmarks.experiment import Experiment
from benchmarks.harness import Json, spread
from benchmarks.inputs.filled_database import fill_service
from benchmarks.inputs.request_sources import write_bulk_file
from cli.api_client import Client
from inference.toy.toy_applications import toy_requests
from models.connections.session import make_sessions
from models.tenants import api_keys
from settings import DASHBOARD_USER

LINES, QUEUED_WITHIN_S = 50_000, 20
FLAT_MIB = 32  # the most memory that an upload may add: little beside the file's 200 MB, more than chance growth
# The metadata of a filled line: keys, and characters of each value. 50,000 of them have a little less than 200 MiB.
FILLED_KEYS, FILLED_CHARACTERS = 8, 476
POLL_S = 0.1
QUEUED = text("""
    select j.next_line > j.last_line as all_read, j.status,
        (select count(*) from bulk_lines l where l.job_id = j.id and l.error is not null) as refused
    from bulk_jobs j where j.id = :id
""")


def take_in(service: MeasuredService, count: int, filled: bool) -> dict[str, Any]:
    """Upload a file with `count` lines and create its job; returns the figures when all lines are queued."""
    with tempfile.TemporaryDirectory() as directory, Client(service.url, service.key) as client:
        path = Path(directory) / "lines.jsonl"
        filling = {f"key{n}": "x" * FILLED_CHARACTERS for n in range(FILLED_KEYS)} if filled else {}
        write_bulk_file(path, client.model(), toy_requests(count, seed=1), filling)
        chores_before, before = service.memory_mib("chores"), service.memory_mib()
        service.forget_peak()
        began = time.monotonic()
        uploaded = client.upload(path)
        upload_s, peak, after = time.monotonic() - began, service.peak_mib(), service.memory_mib()
        began, cpu_before = time.monotonic(), service.cpu_s("chores")
        request = {"input_file_id": uploaded["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch = client.create_batch(request, "intake")
        while True:
            with service.database.connect() as connection:
                job = connection.execute(QUEUED, {"id": batch["id"]}).one()
            if job.all_read or job.status in ("failed", "cancelled", "expired"):
                break
            time.sleep(POLL_S)
        queued_s, chores_s = time.monotonic() - began, service.cpu_s("chores") - cpu_before
        with service.database.connect() as connection:
            queued = connection.execute(text("select count(*) from requests")).scalar_one()
        return {
            "lines": count,
            "bytes": path.stat().st_size,
            "upload_s": upload_s,
            "queued_s": queued_s,
            "chores_cpu_s": chores_s,  # CPU seconds of the chores process, which reads the lines
            "queued": queued,
            "refused_lines": job.refused,
            "web_mib": {"before": before, "peak_of_upload": peak, "after_upload": after, "end": service.memory_mib()},
            "chores_mib": {"before": chores_before, "end": service.memory_mib("chores")},
        }


def measure_intake(filled: bool, count: int) -> Json:
    """Measure the upload of one file, with filled lines or ordinary ones."""
    measured = MeasuredFigure()
    with measured_service("--workers", "0") as service:
        measured.figures = figures = take_in(service, count, filled)
    name = f"{count:,} lines, {figures['bytes'] / 1e6:.0f} MB"
    shown = f"{figures['queued']}, {figures['refused_lines']} refused"
    measured.holds(f"{name}: lines queued", f"{count}", shown, figures["queued"] == count)
    more = f" ({figures['chores_cpu_s']:.3g} s of its process's CPU), after an upload of {figures['upload_s']:.3g} s"
    measured.below(f"{name}: from POST /v1/batches until queued", QUEUED_WITHIN_S, figures["queued_s"], "s", more)
    web = figures["web_mib"]
    more = f" ({web['before']:.0f} before, {web['after_upload']:.0f} after, {web['end']:.0f} at the end)"
    gained = web["peak_of_upload"] - web["before"]
    measured.below(f"{name}: what the upload adds to the web process at its peak", FLAT_MIB, gained, "MiB", more)
    return measured.as_run()


INTAKE = Experiment({"long": LINES, "short": 2_000}, {"ordinary lines": False, "filled lines": True}, measure_intake)
JOBS, PAGE_MS = 1_000_000, 20  # the jobs in the database, and the bound on a page's 95th percentile
LARGEST_TENANT = "tenant-0"  # the tenant of every second job (`benchmarks/inputs/filled_database.py`)
NO_PAGES = ("one request", "stats", "metrics")  # these are timed too, but no bound holds for them
READS = 50  # each page is read this often: enough for a 95th percentile
API_READS = {
    "list": "/v1/responses",
    "list, one status": "/v1/responses?status=failed",
    "list, unknown application": "/v1/responses?application=unknown",
    "stats": "/v1/magnus/stats",
    "metrics": "/metrics",
}
PAGES = {
    "overview": "/",
    "overview, 7 days": "/?over=7d",
    "queue": "/queue",
    "workers": "/workers",
    "predictions": "/predictions",
    "jobs": "/jobs",
    "jobs, failed": "/jobs?status=failed",
    "jobs, slowest": "/jobs?order=slowest",
    "jobs, unknown application": "/jobs?application=unknown",
    "webhooks": "/webhooks",
    "usage": "/usage?days=90",
}


def measure_million(start: StartService, jobs: int) -> Json:
    """Measure the times in which every page is read, of which the 95th percentile has a bound."""
    measured = MeasuredFigure()
    with start() as service:
        with Client(service.url, service.key) as client:
            fill_service(service.facts.database_url, client.model(), jobs)
        with make_sessions(service.database).begin() as session:
            _, key = api_keys.create(session, name="benchmark", tenant=LARGEST_TENANT)
        reads = time_reads(service.url, key, service.facts.dashboard_password)
        middle = f"resp_{jobs // 2 // 2 * 2:032x}"  # the ids of this tenant's jobs have even numbers
        with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}) as http:
            reads["list, from the middle on"] = timed(http, f"/v1/responses?after={middle}")
            reads["list, 100 a page"] = timed(http, "/v1/responses?limit=100")
    measured.figures = {"jobs": jobs, "reads_ms": reads}
    for name, ms in reads.items():
        if name not in NO_PAGES:
            measured.below(f"{name}: P95", PAGE_MS, ms["p95"], "ms", f" (P50 {ms['p50']:.3g}, longest {ms['max']:.3g})")
    return measured.as_run()


def time_reads(url: str, key: str, dashboard_password: str) -> dict[str, dict[str, float]]:
    """Time each kind of read, one call at a time, in milliseconds."""
    times: dict[str, dict[str, float]] = {}
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0) as client:
        newest = client.get("/v1/responses?limit=1").raise_for_status().json()["first_id"]
        reads = {"one request": f"/v1/responses/{newest}", **API_READS}
        times |= {name: timed(client, path) for name, path in reads.items()}
    with httpx.Client(base_url=url, auth=(DASHBOARD_USER, dashboard_password), timeout=30.0) as client:
        times |= {name: timed(client, path) for name, path in PAGES.items()}
    return times


def timed(client: httpx.Client, path: str) -> dict[str, float]:
    """Read a path READS times; returns the median, 95th percentile and maximum in milliseconds."""
    ms = []
    for _ in range(READS):
        started = perf_counter()
        client.get(path).raise_for_status()
        ms.append(1000 * (perf_counter() - started))
    of_all = spread(ms)
    return {name: of_all[name] or 0.0 for name in ("p50", "p95", "max")}


MILLION = Experiment(
    {"long": JOBS, "short": 20_000}, {"no worker": partial(measured_service, "--workers", "0")}, measure_million
)
