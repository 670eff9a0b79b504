"""Measures the CPU of an idle service, the cost of an open dashboard page, and the response time of a lone request.

    python -m benchmarks.idle --seconds 60 --page overview --requests 12 --json F

Prints CPU milliseconds a second of each process. `--requests N` then sends N requests, each after the answer to the one
before; their times include the few milliseconds between two polls.
"""

import time
from pathlib import Path
from threading import Event
from time import perf_counter

import click
import httpx

from benchmarks.harness import Json, Results, json_option, print_table, spread
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.live.live_figures import ServiceMonitor
from benchmarks.service_start import client_of_service
from cli.api_client import Client
from cli.hosting.service_files import RunningService
from inference.toy.toy_applications import ToyRequest, toy_requests

PAGE_EVERY_S = 5.0  # as webapp/static/live.js fetches a page that is open
POLL_S = 0.005  # the most that polling adds to a request's time; shorter would load the service
WARM_UP = 3  # requests that are sent first and not measured


@click.command(help=__doc__)
@click.option("--workers", default=2, show_default=True, help="Workers of the service.")
@click.option("--settle-seconds", default=30.0, show_default=True, help="Between the start and the measurement.")
@click.option("--seconds", default=60.0, show_default=True, help="Length of each measurement.")
@click.option("--page", multiple=True, help="Measure again with this page open: overview, queue, …; repeatable.")
@click.option("--requests", default=0, show_default=True, help="Lone requests to time afterwards.")
@json_option
def main(
    workers: int, settle_seconds: float, seconds: float, page: tuple[str, ...], requests: int, results: Results
) -> None:
    """Start a service, send it nothing, and measure what its processes do; then send lone requests."""
    figures: dict[str, dict[str, float]] = {}
    lone: Json = {}
    with fresh_service("fusion", ServiceOptions(workers, "40MiB")) as (service, state_dir):
        Event().wait(settle_seconds)
        for name in ("", *page):
            with ServiceMonitor(service, state_dir) as monitor:
                leave_open(service, name, seconds)
                monitor.stop_clock()
                figures[f"{name} open" if name else "nobody"] = monitor.cpu_ms_a_second()
        if requests:
            lone = lone_requests(state_dir, requests)
    by_process = sorted(figures["nobody"], key=lambda one: -figures["nobody"][one])
    rows = [{"process": name} | {state: cpu[name] for state, cpu in figures.items()} for name in by_process]
    rows.append({"process": "all of these"} | {state: sum(cpu.values()) for state, cpu in figures.items()})
    print_table(rows, {"process": "process", **{name: f"{name}:.1f" for name in figures}}, "CPU milliseconds a second")
    if lone:
        rows = [{"step": step, **times} for step, times in lone.items()]
        columns = {"step": "step", "mean s": "mean:.3f", "P50": "p50:.3f", "P95": "p95:.3f", "max": "max:.3f"}
        print_table(rows, columns, f"{requests} lone requests")
    results.write({"seconds": seconds, "cpu_ms_a_second": figures, "lone_request_s": lone})


def leave_open(service: RunningService, page: str, seconds: float) -> None:
    """Fetch the page, if any, as often as a browser that shows it; raises httpx.HTTPStatusError if it fails."""
    until = time.monotonic() + seconds
    auth, headers = (service.dashboard_user, service.dashboard_password), {"X-Magnus-Live": "1"}
    with httpx.Client(base_url=service.url, auth=auth, headers=headers, timeout=10.0) as client:
        while (left := until - time.monotonic()) > 0:
            if page:
                client.get("/" if page == "overview" else f"/{page}").raise_for_status()
            Event().wait(min(left, PAGE_EVERY_S))


def lone_requests(state_dir: Path, requests: int) -> Json:
    """Send requests one at a time; returns the spread of each step in seconds."""
    with client_of_service(state_dir) as client:
        model = client.model()
        measured = [steps_of_one(client, model, toy) for toy in toy_requests(WARM_UP + requests, seed=0)][WARM_UP:]
    return {step: spread([one[step] for one in measured], digits=4) for step in measured[0]}


def steps_of_one(client: Client, model: str, request: ToyRequest) -> dict[str, float]:
    """Send one request; returns the seconds of each step. Raises click.ClickException if it is not completed."""
    started_at = perf_counter()
    response = client.create({"model": model, "instructions": request.instruction, "input": request.input})
    accepted_at = perf_counter()
    while response["status"] in ("queued", "in_progress"):
        Event().wait(POLL_S)
        response = client.retrieve(response["id"])
    if response["status"] != "completed":
        raise click.ClickException(f"{response['id']} ended as {response['status']}")
    return {
        "POST": accepted_at - started_at,
        "stored to answered": response["completed_at"] - response["magnus"]["arrived_at"],
        "POST to completed": perf_counter() - started_at,
    }


if __name__ == "__main__":
    main()
