"""Measures one request at a time, from its POST to its completed answer, on a service that is otherwise idle.

    python -m benchmarks.latency [--url URL --api-key KEY | --state-dir DIR] [--requests 20] [--json FILE]

The next request is sent when the last answer was read. The client polls every few milliseconds, so that polling adds no
more than that.
"""

import json
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from cli.api_client import Client
from cli.options import client_of, service_options
from inference.toy.toy_applications import ToyRequest, toy_requests

POLL_S = 0.005  # the most that polling adds to a latency; shorter would load the service
PERCENTILES = {"p50": 50, "p95": 95, "max": 100}


@click.command()
@click.option("--requests", default=20, show_default=True, help="Requests that are measured.")
@click.option("--warmup", default=3, show_default=True, help="Requests before them, not measured.")
@click.option("--seed", default=0, show_default=True, help="Of the requests.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
@service_options
def main(
    requests: int,
    warmup: int,
    seed: int,
    json_file: Path | None,
    url: str | None,
    api_key: str | None,
    state_dir: Path | None,
) -> None:
    """Measure requests one at a time: the POST, its way through the service by its clock, and all of it."""
    with client_of(url, api_key, state_dir) as client:
        model = client.model()
        asked = toy_requests(warmup + requests, seed)
        measured = [measure(client, model, request) for request in asked][warmup:]
    figures = {step: percentiles([one[step] for one in measured]) for step in measured[0]}
    Console().print(table(figures, requests))
    if json_file:
        json_file.write_text(json.dumps({"requests": requests, "seconds": figures}, indent=1) + "\n")


def measure(client: Client, model: str, request: ToyRequest) -> dict[str, float]:
    """Seconds of each step of one request."""
    started_at = perf_counter()
    response = client.create({"model": model, "instructions": request.instruction, "input": request.input})
    accepted_at = perf_counter()
    pause = Event()
    while response["status"] in ("queued", "in_progress"):
        pause.wait(POLL_S)
        response = client.retrieve(response["id"])
    if response["status"] != "completed":
        raise click.ClickException(f"{response['id']} ended as {response['status']}")
    return {
        "POST": accepted_at - started_at,
        "stored to answered": response["completed_at"] - response["magnus"]["arrived_at"],
        "POST to completed": perf_counter() - started_at,
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Mean and percentiles, rounded to a tenth of a millisecond."""
    figures: dict[str, Any] = {"mean": np.mean(seconds)}
    figures |= {name: np.percentile(seconds, percentile) for name, percentile in PERCENTILES.items()}
    return {name: round(float(value), 4) for name, value in figures.items()}


def table(figures: dict[str, dict[str, float]], requests: int) -> Table:
    """One row for each step, in milliseconds."""
    shown = Table("step", "mean ms", *(f"{name.capitalize()} ms" for name in PERCENTILES))
    shown.title = f"one request alone, {requests} times"
    for step, row in figures.items():
        shown.add_row(step, *(f"{1000 * seconds:.0f}" for seconds in row.values()))
    return shown


if __name__ == "__main__":
    main()
