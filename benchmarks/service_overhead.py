"""Compares a whole service on one CPU worker with its engine alone: the same real instructions, all waiting at once.

    python -m benchmarks.service_overhead --model smollm2 --json service_overhead.json

The engine alone runs in this process with the same KV budget and threads and does not know answer lengths: the next
prompts join whenever they fit. Both runs end with their last answer, so both include the end, in which few rows decode.
The two alternate, and each service is a new one.
"""

import os
import tempfile
from collections import deque
from collections.abc import Sequence as Several
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter, process_time

import click
import torch

from benchmarks.harness import Column, Json, Results, json_option, print_table
from benchmarks.live.live_figures import ServiceMonitor
from cli.api_client import Client
from cli.commands.demo_command import REAL_KV_BUDGET
from cli.demo_service import DemoService, own_service
from cli.demo_workload import DemoArrival, DemoRequest, RealRequest, real_arrivals, send_all
from cli.hosting.service_files import running_service
from cli.hosting.worker_devices import threads_each
from cli.output import make_console
from cli.service_access import POLICIES, settings_with
from inference.local.engine import Engine
from inference.local.kv.kv_budget import COLUMN_STEP, kv_budget_bytes
from inference.local.kv.kv_cache import BLOCK_TOKENS
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompt_format import PromptFormat, load_prompt_format
from inference.sequences import Sequence
from scheduling.kv_memory import KvMemory

AT_ONCE = 1e6  # requests a second: all are sent before the first answers come
LEAST_SHOWN = 0.003  # cores; kinds of process with less are in the JSON
POLL_S = 1.0  # each poll costs the service a call; the figures come from the service's own clock

COLUMNS: dict[str, Column] = {
    "engine alone, tokens/s": "engine.tokens_per_s:.0f",
    "its rows": "engine.mean_rows:.1f",
    "service, tokens/s": "service.tokens_per_s:.0f",
    "rows": "service.mean_rows:.1f",
    "ratio": "ratio:.2f",
    "cores outside of the worker": lambda run: outside_by_process(run),
}


@click.command(help=__doc__)
@click.option("--model", required=True, help="The name of a fetched model (smollm2) or a model directory.")
@click.option("--policy", type=click.Choice(POLICIES), default="fusion", show_default=True)
@click.option("--requests", default=110, show_default=True, help="Real instructions, from the demo's.")
@click.option("--repeats", default=3, show_default=True, help="Of both; about 90 s each with smollm2 on two cores.")
@json_option
def main(model: str, policy: str, requests: int, repeats: int, results: Results) -> None:
    """Measure the service and its engine alone in turn."""
    model = settings_with(model=model).model  # the directory that the name of a fetched model means
    arrivals = real_arrivals(requests, AT_ONCE, 0)
    torch.set_num_threads(threads_each(1))
    loaded = load_model(model)
    budget_bytes = kv_budget_bytes(REAL_KV_BUDGET, loaded.device)
    waiting = sequences([arrival.request for arrival in arrivals], load_prompt_format(model))
    runs: list[Json] = []
    for _ in range(repeats):
        alone = engine_run(loaded, budget_bytes, waiting)
        service = service_run(model, policy, arrivals)
        ratio = service["tokens_per_s"] / alone["tokens_per_s"]
        runs.append({"engine": alone, "service": service, "ratio": round(ratio, 3)})
        print_table(runs, COLUMNS)
        results.write({"policy": policy, "requests": requests, "runs": runs})
    click.echo(f"median ratio {median(run['ratio'] for run in runs):.2f}")


def sequences(requests: Several[DemoRequest], prompt_format: PromptFormat) -> list[Sequence]:
    """Encode the requests as the worker does for its engine."""
    return [
        Sequence(
            str(number), tuple(prompt_format.encode(request.instruction, request.input)), request.max_output_tokens
        )
        for number, request in enumerate(requests)
        if isinstance(request, RealRequest) and request.max_output_tokens is not None
    ]


def engine_run(loaded: LoadedModel, budget_bytes: int, sequences: Several[Sequence]) -> Json:
    """Serve all sequences in order on a new engine; rows that outgrow the budget are preempted and resumed."""
    engine, waiting = Engine(loaded, budget_bytes), deque(sequences)
    memory = KvMemory(budget_bytes, loaded.delta_bytes, loaded.fused, BLOCK_TOKENS if loaded.fused else 1)
    prompt_tokens = {sequence.id: sequence.length for sequence in sequences}
    tokens = steps = decoded = 0
    started, cpu_started = perf_counter(), process_time()
    while waiting or engine.rows:
        lengths = [prompt_tokens[row] + generated + COLUMN_STEP for row, generated in engine.rows.items()]
        joiners: list[Sequence] = []
        while waiting:
            lengths.append(waiting[0].length + COLUMN_STEP)
            tokens_needed = memory.rows_tokens(len(lengths), max(lengths), sum(lengths))
            if len(lengths) > 1 and tokens_needed > memory.capacity_tokens:
                break
            joiners.append(waiting.popleft())
        engine.insert(joiners)
        decoded += len(engine.rows)
        steps += 1
        tokens += sum(len(row.generated_ids) for row in engine.step())
    seconds = perf_counter() - started
    cores = {"engine": round((process_time() - cpu_started) / seconds, 3)}
    return figures(seconds, tokens, decoded / steps, cores)


def service_run(model: str, policy: str, arrivals: list[DemoArrival]) -> Json:
    """Serve the same requests with a new service; its time is from the first request to the last answer."""
    with tempfile.TemporaryDirectory(prefix="magnus-overhead-") as directory:
        state_dir = Path(directory)
        service = DemoService(("--model", model, "--kv-budget", REAL_KV_BUDGET))
        with own_service(make_console(), state_dir, policy, service) as address, Client(*address) as client:
            running = running_service(state_dir)
            if running is None:
                raise click.ClickException(f"the service has ended, see {state_dir}/up.log")
            monitor, client_started, pause = ServiceMonitor(running, state_dir), process_time(), Event()
            since = client.stats()["now"]
            with monitor:
                for submission in send_all(client, arrivals, pause, lambda *_: None):
                    submission.result()
                while (stats := client.stats(since))["queued"] + stats["in_progress"]:
                    pause.wait(POLL_S)
                monitor.stop_clock()
                shares = monitor.figures(since)["cpu_share"]
            client_s = process_time() - client_started
            responses = list(client.responses())
    seconds = max(one["completed_at"] for one in responses) - min(one["magnus"]["arrived_at"] for one in responses)
    tokens = sum(response["usage"]["output_tokens"] for response in responses)
    cores = {name: round(share * (os.cpu_count() or 1), 3) for name, share in shares.items()}
    return figures(seconds, tokens, stats["mean_batch_size"], cores | {"client": round(client_s / seconds, 3)})


def figures(seconds: float, tokens: int, mean_rows: float, cores: Json) -> Json:
    """The figures of one run; `cores` has CPU seconds a second by kind of process."""
    return {
        "seconds": round(seconds, 2),
        "tokens": tokens,
        "tokens_per_s": round(tokens / seconds, 1),
        "mean_rows": round(mean_rows, 1),
        "cores": cores,
    }


def outside_by_process(run: Json) -> str:
    """Describe the cores used outside of the worker, the client included, and the processes that used most."""
    cores = run["service"]["cores"]
    outside = sum(used for name, used in cores.items() if not name.startswith("worker"))
    names = sorted(cores, key=cores.__getitem__, reverse=True)
    shown = ", ".join(f"{name} {cores[name]:.3f}" for name in names if cores[name] >= LEAST_SHOWN)
    return f"{outside:.2f} ({shown})"


if __name__ == "__main__":
    main()
