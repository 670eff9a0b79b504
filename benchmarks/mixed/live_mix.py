"""The live half of `benchmarks.mixed`: a real service with the bundled model, in three phases of equal length.

A bulk job alone, first: it may fill all memory, since nobody else came yet. Then interactive alone, then both together.
Response times are the service's own, from arrival to the stored answer; tokens of a phase are those of its answers.
"""

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from cli.api_client import Client, Json
from cli.demo_workload import DemoRequest, poisson_arrivals, send_all
from cli.hosting.service_files import api_address
from inference.toy.toy_applications import toy_requests
from settings import read_settings

MEDIAN_WORDS = 30.0  # of an input, as in `benchmarks.live`: shorter ones measure HTTP
ANSWERED = ("completed", "incomplete")
POLL_S = 0.2  # any value well below a phase does


def write_lines(path: Path, model: str, count: int, seed: int) -> None:
    """A file of so many lines, toy requests like the interactive ones."""
    with path.open("w", encoding="utf-8") as file:
        for number, toy in enumerate(toy_requests(count, seed, median_words=MEDIAN_WORDS)):
            body = {"model": model, "instructions": toy.instruction, "input": toy.input}
            body["metadata"] = {"application": toy.application}  # type: ignore[assignment]
            line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/responses", "body": body}
            file.write(json.dumps(line) + "\n")


def measure_live(policy: str, rate: float, phase_s: float, lines: int, workers: int, seed: int) -> dict[str, Any]:
    """One row; `lines` must keep the fleet busy for a phase."""
    arrivals = poisson_arrivals(round(rate * phase_s), rate, seed, MEDIAN_WORDS)
    with fresh_service(policy, ServiceOptions(workers=workers, kv_budget="64MiB"), arrivals, seed) as (_, state_dir):
        url, key = api_address(read_settings(state_dir=state_dir))
        with Client(url, key) as client, tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "lines.jsonl"
            write_lines(path, client.model(), lines, seed + 1)
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
    """Send the arrivals at their instants, wait for the answers: percentiles of response times, tokens."""
    sent: dict[str, DemoRequest] = {}
    for future in send_all(client, arrivals, threading.Event(), sent.__setitem__):
        future.result()
    responses = [client.wait(one, 60.0) for one in sent]
    times = [one["completed_at"] - one["magnus"]["arrived_at"] for one in responses if one["status"] in ANSWERED]
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "p50_s": float(p50),
        "p99_s": float(p99),
        "tokens": sum(one["usage"]["output_tokens"] for one in responses if one["usage"]),
    }


def bulk_phase(client: Client, path: Path, phase_s: float, arrivals: list[Any]) -> tuple[int, Json]:
    """Run a bulk job for a phase, beside these arrivals; the tokens of its answers, and what the others saw."""
    file = client.upload(path)["id"]
    body = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
    batch = client.create_batch(body, f"{time.monotonic_ns()}")
    while batch["request_counts"]["completed"] == 0:  # it is under way before the phase begins
        time.sleep(POLL_S)
        batch = client.batch(batch["id"])
    before, began = bulk_tokens(client, batch), time.monotonic()
    figures = interactive_phase(client, arrivals) if arrivals else {}
    time.sleep(max(0.0, began + phase_s - time.monotonic()))
    tokens = bulk_tokens(client, batch) - before
    took_s = time.monotonic() - began
    if client.batch(batch["id"])["status"] == "completed":
        raise click.ClickException("the bulk job ended within its phase: give it more --lines")
    client.cancel_batch(batch["id"])
    while client.batch(batch["id"])["status"] != "cancelled":
        time.sleep(POLL_S)
    return round(tokens * phase_s / took_s), figures


def bulk_tokens(client: Client, batch: Json) -> int:
    """Tokens of the batch's answers by now."""
    output = client.batch(batch["id"])["output_file_id"]
    content = b"".join(client.content(output)) if output else b""
    records = (json.loads(line) for line in content.splitlines())
    return sum(one["response"]["body"]["usage"]["output_tokens"] for one in records)
