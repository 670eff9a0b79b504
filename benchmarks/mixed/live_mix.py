"""The live half of `benchmarks.mixed`: interactive requests beside a bulk job, and a bulk job alone.

The first has three phases of equal length: the bulk job alone, which may fill all memory before other requests come;
interactive requests alone; both together. Response times are the service's own, from arrival to the stored answer.

A bulk job's makespan is compared with two ideals. `over_mean_end`: all workers end at the same instant, their mean end;
the excess is work that was unevenly divided at the job's end. `over_middle_rate`: the whole job runs at the rate of its
middle; this also counts its beginning and the few rows that decode at its end.
"""

import json
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from sqlalchemy import text

from benchmarks.inputs.request_sources import MEDIAN_WORDS, start_bulk_job, write_bulk_file
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.mixed.simulated_mix import bulk_lines, run
from benchmarks.service_start import client_of_service, connection_to
from cli.api_client import Client, Json
from cli.demo.demo_workload import DemoRequest, poisson_arrivals, send_all
from inference.toy.toy_applications import toy_requests

ANSWERED = ("completed", "incomplete")
POLL_S = 0.2  # any value well below a phase works


def measure_live(policy: str, rate: float, phase_s: float, lines: int, workers: int, seed: int) -> dict[str, Any]:
    """Measure the three phases; returns one row. `lines` must keep the fleet busy for a phase."""
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
    """Run a bulk job for a phase beside these arrivals; returns the tokens of its answers and the arrivals' figures."""
    batch = start_bulk_job(client, path)
    while batch["request_counts"]["completed"] == 0:  # the phase begins when the job is being served
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
    """Count the tokens of the job's answers so far."""
    output = client.batch(batch["id"])["output_file_id"]
    content = b"".join(client.content(output)) if output else b""
    records = (json.loads(line) for line in content.splitlines())
    return sum(one["response"]["body"]["usage"]["output_tokens"] for one in records)


MIDDLE = (0.2, 0.6)  # shares of the job's tokens between which all workers are full
WARM_LINES = 200  # lines of a job before the measured one, from which costs and lengths are learned
PACED_WORKERS, PACED_MACHINE = 4, "v100"
ENDS = text("""
    select extract(epoch from r.started_at)::float8 as started_at,
        extract(epoch from r.finished_at)::float8 as finished_at, r.output_tokens, b.worker
    from bulk_lines l join requests r on r.id = l.request_id join batches b on b.id = r.batch_id where l.job_id = :id
""")


@dataclass(frozen=True)
class ServedLine:
    """An answer's end in seconds since the job's first work, its tokens, and its worker."""

    finished_s: float
    tokens: int
    worker: str


def over_ideal(lines: Sequence[ServedLine]) -> dict[str, float]:
    """Compute the makespan and its ratios to both ideals."""
    ends: dict[str, float] = {}
    for line in lines:
        ends[line.worker] = max(ends.get(line.worker, 0.0), line.finished_s)
    makespan_s = max(ends.values())
    in_order = sorted(lines, key=lambda line: line.finished_s)
    done = np.cumsum([line.tokens for line in in_order])
    first, last = (int(np.searchsorted(done, share * done[-1])) for share in MIDDLE)
    middle_s = in_order[last].finished_s - in_order[first].finished_s
    ideal_s = done[-1] / ((done[last] - done[first]) / middle_s)
    return {
        "makespan_s": makespan_s,
        "over_mean_end": makespan_s / float(np.mean(list(ends.values()))),
        "over_middle_rate": float(makespan_s / ideal_s),
    }


def simulated_makespan(policy: str, lines: int, seed: int) -> dict[str, Any]:
    """Simulate a job on the fleet of `benchmarks.mixed.simulated_mix`."""
    trace = run(policy, bulk_lines(lines, seed))
    served = [ServedLine(one.finished_at, one.generated, one.worker) for one in trace.answers.values()]
    return {"policy": policy, "workers": "simulated", "lines": lines, **over_ideal(served)}


def live_makespan(policy: str, lines: int, workers: int, paced: bool, seed: int) -> dict[str, Any]:
    """Run a job on a whole service, with our own workers or with paced ones."""
    machine = PACED_MACHINE if paced else None
    options = ServiceOptions(workers=PACED_WORKERS if paced else workers, kv_budget="64MiB", paced=machine)
    with fresh_service(policy, options) as (service, state_dir), tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        with client_of_service(state_dir) as client:
            for number, count in enumerate((min(WARM_LINES, lines), lines)):
                write_bulk_file(path, client.model(), toy_requests(count, seed + number, median_words=MEDIAN_WORDS))
                job = serve(client, path)
        with connection_to(service.database_url) as connection:
            rows = connection.execute(ENDS, {"id": job}).all()
    began_at = min(row.started_at for row in rows)
    served = [ServedLine(row.finished_at - began_at, row.output_tokens, row.worker) for row in rows]
    kind = f"{PACED_WORKERS} paced {PACED_MACHINE}" if paced else f"{workers} of ours"
    return {"policy": policy, "workers": kind, "lines": len(rows), **over_ideal(served)}


def serve(client: Client, path: Path) -> str:
    """Run a job to its end; returns its id."""
    batch = start_bulk_job(client, path)
    while batch["status"] != "completed":
        time.sleep(POLL_S)
        batch = client.batch(batch["id"])
    return str(batch["id"])
