"""Measures interactive requests beside a bulk job on a whole service.

There are three phases of equal length: the bulk job alone, which may fill all memory before other requests come;
interactive requests alone; both together. Response times are the service's own, from arrival to the stored answer.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.inputs.request_sources import MEDIAN_WORDS, start_bulk_job, write_bulk_file
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.service_start import client_of_service, submitted
from cli.api_client import Client, Json
from cli.demo.demo_workload import poisson_arrivals
from inference.toy.toy_applications import toy_requests

ANSWERED = ("completed", "incomplete")
POLL_S = 0.2  # any value well below the length of a phase works


def measure_live(policy: str, rate: float, phase_s: float, lines: int, workers: int, seed: int) -> dict[str, Any]:
    """Measure the three phases; returns one row. The job's `lines` must keep the fleet busy for a whole phase."""
    arrivals = poisson_arrivals(round(rate * phase_s), rate, seed, MEDIAN_WORDS)
    options = ServiceOptions(workers=workers, kv_budget="64MiB")
    with (
        fresh_service(policy, options) as (_, state_dir),
        client_of_service(state_dir) as client,
        tempfile.TemporaryDirectory() as directory,
    ):
        path = Path(directory) / "lines.jsonl"
        write_bulk_file(path, client.model(), toy_requests(lines, seed + 1, median_words=MEDIAN_WORDS))
        bulk_tokens, _ = bulk_phase(client, path, phase_s, [])
        alone = interactive_phase(client, arrivals)
        beside_tokens, beside = bulk_phase(client, path, phase_s, arrivals)
    spare_tokens = bulk_tokens - alone["tokens"]
    return {
        "policy": policy,
        "rate": rate,
        "workers": workers,
        "load": alone["tokens"] / bulk_tokens,
        "p50_alone_s": alone["p50_s"],
        "p50_beside_s": beside["p50_s"],
        "p99_alone_s": alone["p99_s"],
        "p99_beside_s": beside["p99_s"],
        "p99_ratio": beside["p99_s"] / alone["p99_s"],
        "spare_used": beside_tokens / spare_tokens,
        "bulk_tokens_per_s": bulk_tokens / phase_s,
    }


def interactive_phase(client: Client, arrivals: list[Any]) -> Json:
    """Send the arrivals at their instants and wait for the answers; returns response times and tokens."""
    responses = [client.wait(one, 60.0) for one in submitted(client, arrivals)]
    times = [one["completed_at"] - one["magnus"]["arrived_at"] for one in responses if one["status"] in ANSWERED]
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "p50_s": float(p50),
        "p99_s": float(p99),
        "tokens": sum(one["usage"]["output_tokens"] for one in responses if one["usage"]),
    }


def bulk_phase(client: Client, path: Path, phase_s: float, arrivals: list[Any]) -> tuple[int, Json]:
    """Run a bulk job for a phase beside these arrivals; returns the job's answered tokens and the arrivals' figures."""
    batch = start_bulk_job(client, path)
    while batch["request_counts"]["completed"] == 0:  # the phase begins with the first answer
        time.sleep(POLL_S)
        batch = client.batch(batch["id"])
    before, began = bulk_tokens(client, batch), time.monotonic()
    figures = interactive_phase(client, arrivals) if arrivals else {}
    time.sleep(max(0.0, began + phase_s - time.monotonic()))
    tokens = bulk_tokens(client, batch) - before
    took_s = time.monotonic() - began
    if client.batch(batch["id"])["status"] == "completed":
        raise click.ClickException("the bulk job ended within its phase: give it more --lines")
    client.act_on_batch(batch["id"], "cancel")
    while client.batch(batch["id"])["status"] != "cancelled":
        time.sleep(POLL_S)
    return round(tokens * phase_s / took_s), figures


def bulk_tokens(client: Client, batch: Json) -> int:
    """Return the number of tokens in the job's answers so far."""
    output = client.batch(batch["id"])["output_file_id"]
    content = b"".join(client.content(output)) if output else b""
    records = (json.loads(line) for line in content.splitlines())
    return sum(one["response"]["body"]["usage"]["output_tokens"] for one in records)
