"""Pages out of a million jobs: the API's lists for the tenant that has half of them, the dashboard's over all.

The service has no workers, and nothing waits. Each page is read again and again, one call at a time.
"""

import httpx

from benchmarks.accept import fill_database, time_reads, timed
from benchmarks.api.measured_figure import MeasuredFigure
from benchmarks.api.measured_service import measured_service
from cli.api_client import Client
from models.session import make_sessions
from models.tenants import api_keys

JOBS, PAGE_MS = 1_000_000, 20  # of the issue
LARGEST_TENANT = "tenant-0"  # has every second job (`benchmarks.filled_database`)
NO_PAGES = ("one request", "stats", "metrics")  # read as well, but not what the bound is about


def measure(short: bool) -> MeasuredFigure:
    """Every page at its 95th percentile."""
    measured, jobs = MeasuredFigure(), 20_000 if short else JOBS
    with measured_service("--workers", "0") as service:
        with Client(service.url, service.key) as client:
            fill_database(service.facts.database_url, client.model(), finished=jobs, queued=0)
        with make_sessions(service.database).begin() as session:
            _, key = api_keys.create(session, name="benchmark", tenant=LARGEST_TENANT)
        reads = time_reads(service.url, key, service.facts.dashboard_password)
        middle = f"resp_{jobs // 2 // 2 * 2:032x}"  # its jobs have even numbers
        with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}) as http:
            reads["list, from the middle on"] = timed(http, f"/v1/responses?after={middle}")
            reads["list, 100 a page"] = timed(http, "/v1/responses?limit=100")
    measured.figures = {"jobs": jobs, "reads_ms": reads}
    for name, ms in reads.items():
        if name not in NO_PAGES:
            measured.below(f"{name}: P95", PAGE_MS, ms["p95"], "ms", f" (P50 {ms['p50']:.3g}, longest {ms['max']:.3g})")
    return measured
