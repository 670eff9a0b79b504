"""Measures how fast a running service accepts requests, by Poisson arrivals over HTTP.

    python -m benchmarks.accept --url http://127.0.0.1:8000 --api-key KEY --rate 200 --seconds 30 [--json FILE]
        [--database-url URL --finished 1000000 --queued 100000] [--dashboard-password PASSWORD]

Arrivals are an open loop: a slow answer does not delay the next request, and a latency counts from the instant at which
the request was due. `--finished` and `--queued` first fill the service's empty database with ended and waiting
requests; stop planner and workers before, or they serve the queue. After the submissions, reads are timed one by one: a
request, lists and, with its password, the dashboard. The figures must be the same with a stopped or frozen broker,
because accepting a request does not use the broker.
"""

import asyncio
import random
from time import perf_counter
from typing import Any

import click
import httpx
from sqlalchemy import text

from benchmarks.harness import Results, json_option, print_table, spread
from benchmarks.inputs.filled_database import fill
from models.session import make_engine
from settings import DASHBOARD_USER

READS = 50  # reads of each kind: enough for a 95th percentile
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

# Any words do: the answers are not read.
SUBMISSIONS = {
    "rate / s": "rate:g",
    "accepted": "accepted",
    "failed": "failed",
    **{name: f"latency_ms.{name}:.1f" for name in ("mean", "p50", "p95", "p99", "max")},
}
READ_TIMES = {"read": "read", "P50 ms": "p50:.1f", "P95": "p95:.1f", "max": "max:.1f"}
WORDS = ["red", "green", "blue", "one", "two", "three", "small", "big", "old", "new", "house", "tree", "river", "bird"]


def body(model: str, rng: random.Random) -> dict[str, Any]:
    """Make a request of 5 to 40 words."""
    words = " ".join(rng.choices(WORDS, k=rng.randint(5, 40)))
    return {"model": model, "instructions": "Repeat the words.", "input": words, "background": True}


async def submit_all(url: str, key: str, rate: float, seconds: float, seed: int) -> tuple[list[float], list[str]]:
    """Submit Poisson arrivals; returns latencies of accepted requests in seconds, and status or error of the others."""
    rng = random.Random(seed)
    latencies: list[float] = []
    failures: list[str] = []
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=30.0) as client:
        model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        start, due = perf_counter(), 0.0

        async def submit(due: float) -> None:
            try:
                answer = await client.post("/v1/responses", json=body(model, rng))
            except httpx.HTTPError as error:
                failures.append(type(error).__name__)
                return
            if answer.status_code == 200:
                latencies.append(perf_counter() - start - due)
            else:
                failures.append(str(answer.status_code))

        async with asyncio.TaskGroup() as group:
            while (due := due + rng.expovariate(rate)) < seconds:
                await asyncio.sleep(max(0.0, start + due - perf_counter()))
                group.create_task(submit(due))
    return latencies, failures


def fill_database(url: str, model: str, finished: int, queued: int) -> None:
    """Fill the service's database; raises ClickException if it has requests already."""
    engine = make_engine(url, pool_size=1, name="benchmark")
    with engine.connect() as connection:
        if connection.execute(text("select exists(select from requests)")).scalar_one():
            raise click.ClickException("the database has requests already; --finished and --queued fill an empty one")
        fill(connection, finished, queued, model)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum analyze"))
    engine.dispose()


def time_reads(url: str, key: str, dashboard_password: str | None) -> dict[str, dict[str, float]]:
    """Time each kind of read, one call at a time, in milliseconds."""
    times: dict[str, dict[str, float]] = {}
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0) as client:
        newest = client.get("/v1/responses?limit=1").raise_for_status().json()["first_id"]
        reads = {"one request": f"/v1/responses/{newest}", **API_READS}
        times |= {name: timed(client, path) for name, path in reads.items()}
    if dashboard_password is not None:
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


def figures(latencies: list[float], failures: list[str], rate: float, seconds: float) -> dict[str, Any]:
    """Summarize the submissions for the JSON, with latencies in milliseconds."""
    return {
        "rate": rate,
        "seconds": seconds,
        "accepted": len(latencies),
        "failed": len(failures),
        "failures": sorted(set(failures)),
        "latency_ms": spread([1000 * latency for latency in latencies]),
    }


@click.command()
@click.option("--url", required=True, help="Address of a running service")
@click.option("--api-key", required=True)
@click.option("--rate", default=200.0, show_default=True, help="Requests a second")
@click.option("--seconds", default=30.0, show_default=True)
@click.option("--finished", default=0, show_default=True, help="Ended requests to fill the database with first")
@click.option("--queued", default=0, show_default=True, help="Waiting requests to fill it with")
@click.option("--database-url", help="The service's database; needed with --finished and --queued")
@click.option("--dashboard-password", help="Time the dashboard's pages too")
@json_option
def main(
    url: str,
    api_key: str,
    rate: float,
    seconds: float,
    finished: int,
    queued: int,
    database_url: str | None,
    dashboard_password: str | None,
    results: Results,
) -> None:
    """Measure how fast requests are accepted."""
    if finished or queued:
        if database_url is None:
            raise click.UsageError("--finished and --queued need --database-url")
        served = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {api_key}"}).raise_for_status()
        fill_database(database_url, served.json()["data"][0]["id"], finished, queued)
    asyncio.run(submit_all(url, api_key, rate, 2.0, 2))  # warms up connections and caches on both sides
    result = figures(*asyncio.run(submit_all(url, api_key, rate, seconds, 1)), rate, seconds)
    print_table([result], SUBMISSIONS)
    if result["failures"]:
        click.echo(f"not accepted: {', '.join(result['failures'])}")
    result |= {"finished_before": finished, "queued_before": queued}
    result["reads_ms"] = reads = time_reads(url, api_key, dashboard_password)
    print_table([{"read": name, **ms} for name, ms in reads.items()], READ_TIMES)
    results.write(result)


if __name__ == "__main__":
    main()
