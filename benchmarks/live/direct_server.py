"""vLLM's own server in place of the whole service: clients speak to it directly, nothing is stored.

It has both cores, and the key-value cache of all our workers in one. `make engines` installs it.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.live.fresh_service import ServiceOptions
from benchmarks.outside_engines.open_loop import Target, figures, replay
from benchmarks.outside_engines.server_processes import ServerTerms, running_engine
from cli.api_client import Json
from cli.demo_workload import DemoArrival
from inference.local.cpu.cpu_dtype import cpu_dtype, parameters_of
from inference.local.kv_budget import kv_budget_bytes
from inference.local.model_loading import load_model
from settings import BUNDLED_MODEL

DIRECT_SERVERS = ("vllm",)
MAX_ROWS = 128  # of a step. Not tuned
ANSWER_TOKENS = 1024  # Gmax of the service by default


def run_direct(options: ServiceOptions, warm: list[DemoArrival], arrivals: list[DemoArrival]) -> Json:
    """Start it, have the `warm` requests answered, then replay the arrivals; figures by the clients' clock."""
    model, limit = Path(options.model or BUNDLED_MODEL), options.max_output_tokens or ANSWER_TOKENS
    terms = server_terms(model, options)
    with (
        tempfile.TemporaryDirectory(prefix="magnus-direct-") as logs,
        running_engine("vllm", terms, Path(logs)) as server,
    ):
        target = Target(server.url, server.model)
        replay(target, warm, limit)
        run = figures(replay(target, arrivals, limit))
    seconds = run["completed"] / run["requests_per_s"]
    return run | {
        "requests": len(arrivals),
        "valid_tokens_per_s": round(run["tokens"] / seconds, 1),
        "server_kv_tokens": terms.kv_tokens,
    }


def server_terms(model: Path, options: ServiceOptions) -> ServerTerms:
    """The model in the format that our workers choose, and their memory put together."""
    loaded, (dtype, _) = load_model(str(model)), cpu_dtype(parameters_of(model) or 0)
    workers_bytes = options.workers * kv_budget_bytes(options.kv_budget, loaded.device)
    terms = ServerTerms(model, max_rows=MAX_ROWS, dtype=dtype)
    blocks = workers_bytes // loaded.delta_bytes // terms.block_tokens
    return replace(terms, kv_tokens=blocks * terms.block_tokens)
