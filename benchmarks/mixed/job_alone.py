"""Measures a bulk job alone: simulated, on paced workers, on ours, and with a real model against its engine alone.

The makespan is compared with two ideals. `over_mean_end`: all workers end at the same instant, their mean end; the
excess is work that was unevenly divided at the job's end. `over_middle_rate`: the whole job runs at the rate of its
middle; this also counts its beginning and the few rows that decode at its end. `over_engine` compares the seconds since
the job was created with those that the engine takes for the same prompts and answers, without a service around it.
"""

import math
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch
from sqlalchemy import text

from benchmarks.inputs.request_sources import Workload, arrivals_of, start_bulk_job, write_bulk_file
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.mixed.simulated_mix import bulk_lines, run
from benchmarks.service_start import client_of_service, connection_to
from cli.api_client import Client, Json
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.engine_profile import worthwhile_threads
from inference.local.guessed_tokens import Guessing
from inference.local.kv.kv_cache import BLOCK_TOKENS
from inference.local.loading.model_loading import load_model
from inference.prompts.prompt_format import load_prompt_format
from settings import read_settings

MIDDLE = (0.2, 0.6)  # all workers are full between these shares of the job's tokens
WARM_LINES = 200  # lines of an earlier job that teaches costs and lengths; at most a third of the measured job's
POLL_S = 0.2  # any value well below a makespan works
# A real model has a KV cache of these bytes and these limits of prompt and answer (docs/results/real_model.md).
MODEL_MEMORY, MODEL_PROMPT, MODEL_ANSWER = 110 * 2**20, 128, 256
ENDS = text("""
    select extract(epoch from j.created_at)::float8 as created_at,
        extract(epoch from r.started_at)::float8 as started_at,
        extract(epoch from r.finished_at)::float8 as finished_at, r.output_tokens, b.worker, r.instructions, r.input
    from bulk_lines l join requests r on r.id = l.request_id join batches b on b.id = r.batch_id
        join bulk_jobs j on j.id = l.job_id where l.job_id = :id
""")


@dataclass(frozen=True)
class ServedLine:
    """An answer's end in seconds since the job's first line started, its tokens, and its worker."""

    finished_s: float
    tokens: int
    worker: str


def over_ideal(lines: Sequence[ServedLine]) -> dict[str, float]:
    """Return the makespan in seconds and its ratios to both ideals."""
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


def simulated_makespan(policy: str, lines: int, seed: int) -> Json:
    """Simulate a job on the fleet of `benchmarks.mixed.simulated_mix`."""
    trace = run(policy, bulk_lines(lines, seed))
    served = [ServedLine(one.finished_at, one.generated, one.worker) for one in trace.answers.values()]
    return {"policy": policy, "workers": "simulated", "lines": lines, **over_ideal(served)}


def live_makespan(policy: str, lines: int, options: ServiceOptions, seed: int, workload: Workload = "toy") -> Json:
    """Run a job on a whole service; with a real model (`options.model`) also on its engine alone."""
    drawn = [one.request for one in arrivals_of(workload, lines + WARM_LINES, 1.0, seed)]
    warm, measured = drawn[: min(WARM_LINES, lines // 3)], drawn[WARM_LINES:]
    with fresh_service(policy, options) as (service, state_dir), tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        with client_of_service(state_dir) as client:
            for requests in (warm, measured):
                write_bulk_file(path, client.model(), requests)
                job = serve(client, path)
        with connection_to(service.database_url) as connection:
            rows = connection.execute(ENDS, {"id": job}).all()
    began_at = min(row.started_at for row in rows)
    served = [ServedLine(row.finished_at - began_at, row.output_tokens, row.worker) for row in rows]
    kind = f"{options.workers} paced {options.paced}" if options.paced else f"{options.workers} of ours"
    figures = {"policy": policy, "workers": kind, "lines": len(rows), **over_ideal(served)}
    if options.model is None:
        return figures
    since_created_s = max(row.finished_at for row in rows) - rows[0].created_at
    answers = [(row.instructions, row.input, row.output_tokens) for row in rows]
    engine_s = engine_alone_s(options.model, MODEL_MEMORY, answers)
    return figures | {
        "since_created_s": since_created_s,
        "engine_s": engine_s,
        "over_engine": since_created_s / engine_s,
    }


def serve(client: Client, path: Path) -> str:
    """Run a job to its end; returns its id."""
    batch = start_bulk_job(client, path)
    while batch["status"] != "completed":
        sleep(POLL_S)
        batch = client.batch(batch["id"])
    return str(batch["id"])


def engine_alone_s(model: str, memory_bytes: int, answers: Sequence[tuple[str, str, int]]) -> float:
    """Return our engine's seconds for these prompts and answer lengths; an answer is (instructions, input, tokens).

    The rows with the longest answers join first. A row joins if the memory would hold all rows at their full lengths.
    """
    settings, prompts = read_settings(model=model), load_prompt_format(model)
    loaded = load_model(model)
    torch.set_num_threads(worthwhile_threads(loaded, memory_bytes, torch.get_num_threads()))
    guessing = Guessing(settings.parameters.guess_tokens)
    engine = Engine(
        loaded, memory_bytes, EngineOptions(prefix_cache=settings.parameters.prefix_cache, guessing=guessing)
    )
    rows = [
        DecodingRequest(str(number), tuple(prompts.encode(instructions or "", asked)), tokens)
        for number, (instructions, asked, tokens) in enumerate(answers)
    ]
    waiting = deque(sorted(rows, key=lambda row: row.limit, reverse=True))
    free, held = memory_bytes // loaded.delta_bytes // BLOCK_TOKENS, dict[str, int]()
    began = perf_counter()
    while waiting or engine.rows:
        joiners = []
        while waiting and (blocks := blocks_of(waiting[0])) <= free:
            joiners.append(waiting.popleft())
            held[joiners[-1].id] = blocks
            free -= blocks
        engine.insert(joiners)
        free += sum(held.pop(ended.id) for ended in engine.step())
    return perf_counter() - began


def blocks_of(row: DecodingRequest) -> int:
    """Return the blocks of KV cache that a row fills with its whole answer."""
    return math.ceil((len(row.prompt_ids) + row.limit) / BLOCK_TOKENS)
