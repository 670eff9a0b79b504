"""A bulk job alone: its makespan over the ideal, simulated and on a real service.

The ideal is stated twice. If all workers ended at the same instant, the makespan would be their mean end: what is more
comes of work badly divided at the job's end. If the job were served at the rate of its middle from beginning to end, it
would take its tokens over that rate: this counts its beginning too, and the few rows that decode at its end.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import text

from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.mixed.live_mix import write_lines
from benchmarks.mixed.simulated_mix import bulk_lines, run
from cli.api_client import Client
from cli.hosting.service_files import api_address
from models.session import make_engine
from settings import read_settings

MIDDLE = (0.2, 0.6)  # of the job's tokens, by their answers' ends: all workers have filled up, and none runs dry
WARM_LINES = 200  # of a job before it, so that costs and lengths are learned; not measured
PACED_WORKERS, PACED_MACHINE = 4, "v100"
POLL_S = 0.5
ENDS = text("""
    select extract(epoch from r.started_at)::float8 as started_at,
        extract(epoch from r.finished_at)::float8 as finished_at, r.output_tokens, b.worker
    from bulk_lines l join requests r on r.id = l.request_id join batches b on b.id = r.batch_id where l.job_id = :id
""")


@dataclass(frozen=True)
class ServedLine:
    """When an answer ended, seconds since the job's first work; its tokens; who gave it."""

    finished_s: float
    tokens: int
    worker: str


def over_ideal(lines: Sequence[ServedLine]) -> dict[str, float]:
    """The makespan, and its ratios to both ideals."""
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
    """A job on the fleet of `benchmarks.mixed.simulated_mix`."""
    trace = run(policy, bulk_lines(lines, seed))
    served = [ServedLine(one.finished_at, one.generated, one.worker) for one in trace.answers.values()]
    return {"policy": policy, "workers": "simulated", "lines": lines, **over_ideal(served)}


def live_makespan(policy: str, lines: int, workers: int, paced: bool, seed: int) -> dict[str, Any]:
    """A job on a whole service, with workers of ours or such as keep a published machine's pace."""
    machine = PACED_MACHINE if paced else None
    options = ServiceOptions(workers=PACED_WORKERS if paced else workers, kv_budget="64MiB", paced=machine)
    with fresh_service(policy, options, [], seed) as (service, state_dir), tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        with Client(*api_address(read_settings(state_dir=state_dir))) as client:
            for number, count in enumerate((min(WARM_LINES, lines), lines)):
                write_lines(path, client.model(), count, seed + number)
                job = serve(client, path)
        database = make_engine(service.database_url, pool_size=1, name="benchmark")
        with database.connect() as connection:
            rows = connection.execute(ENDS, {"id": job}).all()
        database.dispose()
    began_at = min(row.started_at for row in rows)
    served = [ServedLine(row.finished_at - began_at, row.output_tokens, row.worker) for row in rows]
    kind = f"{PACED_WORKERS} paced {PACED_MACHINE}" if paced else f"{workers} of ours"
    return {"policy": policy, "workers": kind, "lines": len(rows), **over_ideal(served)}


def serve(client: Client, path: Path) -> str:
    """Run a job to its end; returns its id."""
    body = {"input_file_id": client.upload(path)["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    batch = client.create_batch(body, f"{time.monotonic_ns()}")
    while batch["status"] != "completed":
        time.sleep(POLL_S)
        batch = client.batch(batch["id"])
    return str(batch["id"])
