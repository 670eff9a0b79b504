"""Compares policies on the real stack: the same arrivals over HTTP, a new service for each run, one table.

`python -m benchmarks.live --policies vs,magnus,fusion --rates 40,160 --requests 1000 --json F --plot DIR`

`python -m benchmarks.live --model smollm2 --workload instructions --workers 1 --rates 2 --warm-requests 60`

`python -m benchmarks.live --policies fusion --paced v100 --workers 7 --rates 40`

Repeats are interleaved: each policy and peer runs once before any runs again. The table has the medians of the repeats.
Peers serve the same API in other ways (`benchmarks/live/peer_processes.py`). The peer `vllm` is vLLM's own server
without our service, so that only the clients' figures are known.
"""

import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import click

from benchmarks.changed_models import MODEL_SIZES, ModelSize, enlarged_model, kv_growth
from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.live.fresh_service import PEERS, ServiceOptions, fresh_service
from benchmarks.live.live_figures import ServiceMonitor
from benchmarks.outside_engines.open_loop import DIRECT_SERVERS, run_direct
from benchmarks.pictures import plot_over_rate
from benchmarks.request_sources import Workload, arrivals_of
from benchmarks.scale.paced_engine import MACHINES
from benchmarks.scale.run_figures import compared
from benchmarks.service_start import client_of_service, connection_to
from cli.demo_workload import DemoArrival, DemoRequest, send_all
from cli.hosting.service_files import RunningService
from cli.option_types import CommaSeparated
from cli.run_report import WHOLE_OR_CUT_OFF, summary
from cli.service_access import POLICIES, settings_with

# Between two samples of the service; a shorter interval takes CPU from the service on a small machine. Not tuned.
POLL_S = 0.5
WARM_RATE = 8.0  # a second, before the measurement: above a real model's rate on a CPU, so that requests are batched
# Seconds after the last one, until a predictor fitted to their answers is in service: the trainer checks every 5 s.
SETTLE_S = 10.0
SIX_ROWS_MIB = 40  # of Eq. (1), 1,024 + 1,024 tokens of the bundled model
POLICY_LIST, PEER_LIST = CommaSeparated(click.Choice(POLICIES)), CommaSeparated(click.Choice([*PEERS, *DIRECT_SERVERS]))
COLUMNS = {  # columns of the table: medians over the repeats
    "policy": "policy",
    "rate": "rate:g",
    "req/s": "requests_per_s:.1f",
    "valid tok/s": "valid_tokens_per_s:.0f",
    "valid": "valid_token_share:.0%",
    "batch": "mean_batch_size:.1f",
    "mean s": "mean:.2f",
    "P50": "p50:.2f",
    "P95": "p95:.2f",
    "P99": "p99:.2f",
    "max": "max:.2f",
    "idle": "worker_idle_share:.1%",
    "gap P50 ms": "gap_ms_p50:.0f",
    "gap P99 ms": "gap_ms_p99:.0f",
    "decision ms": "decision_ms:.2f",
    "control CPU": "control_cpu_share:.1%",
    "not engine": "cpu_outside_engine:.1%",
    "ETA error": "eta_error:.0%",
}


@click.command(help=__doc__)
@click.option("--policies", type=POLICY_LIST, default="vs,magnus,scls,baton,fusion", show_default=True)
@click.option("--peers", type=PEER_LIST, default="", help=f"Of {', '.join((*PEERS, *DIRECT_SERVERS))}.")
@click.option("--rates", type=CommaSeparated(float), default="180", show_default=True, help="Arrivals a second.")
@click.option("--workers", default=2, show_default=True, help="Workers of each service, or processes of a peer.")
@click.option("--requests", default=1000, show_default=True, help="Requests a run.")
@click.option("--warm-requests", default=0, show_default=True, help="Other requests, answered before the measurement.")
@click.option("--warm-seconds", default=0.0, show_default=True, help="Arrivals at the run's rate after those.")
@click.option("--workload", type=click.Choice(get_args(Workload)), default="toy", show_default=True)
@click.option("--model", help="A fetched model's name or a directory; the bundled one if unset.")
@click.option("--model-size", type=click.Choice(MODEL_SIZES), default="1x", help="Of the bundled model's parameters.")
@click.option("--max-prompt-tokens", type=click.IntRange(1), help="Lmax of the service; its default if unset.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Gmax of the service; its default if unset.")
@click.option("--paced", type=click.Choice(sorted(MACHINES)), help="Paced workers, and the simulator beside them.")
@click.option("--kv-budget", help="Of each worker; six rows of Eq. (1) of the bundled model at its size if unset.")
@click.option("--repeats", default=1, show_default=True)
@click.option("--seed", default=0, show_default=True)
@json_option
@click.option("--plot", "plot_dir", type=click.Path(path_type=Path, file_okay=False), help="Write a picture there.")
def main(
    policies: list[str],
    peers: list[str],
    rates: list[float],
    workers: int,
    requests: int,
    warm_requests: int,
    warm_seconds: float,
    workload: Workload,
    model: str | None,
    model_size: ModelSize,
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
    paced: str | None,
    kv_budget: str | None,
    repeats: int,
    seed: int,
    results: Results,
    plot_dir: Path | None,
) -> None:
    """Run each policy and peer at each rate on a fresh stack and compare."""
    names = [*policies, *peers]
    if model and model_size != "1x":
        raise click.BadParameter("only the bundled model can be enlarged", param_hint="--model-size")
    directory = settings_with(model=model).model if model else None  # resolves the name of a fetched model
    if model_size != "1x":
        made_in = click.get_current_context().with_resource(tempfile.TemporaryDirectory(prefix="magnus-enlarged-"))
        directory = str(enlarged_model(model_size, Path(made_in)))
    options = ServiceOptions(
        workers,
        kv_budget or f"{SIX_ROWS_MIB * kv_growth(model_size):.0f}MiB",
        directory,
        max_prompt_tokens,
        max_output_tokens,
        pretrained=model is None,
        paced=paced,
    )
    runs: list[Json] = []
    for repeat, rate, name in product(range(repeats), rates, names):
        settling = round(rate * warm_seconds)
        drawn = arrivals_of(workload, warm_requests + settling + requests, rate, seed + repeat)
        warm, settle = drawn[:warm_requests], _from_zero(drawn[warm_requests : warm_requests + settling])
        arrivals = _from_zero(drawn[warm_requests + settling :])
        warm = [replace(one, at_s=n / WARM_RATE) for n, one in enumerate(warm)]
        if name in DIRECT_SERVERS:
            run = run_direct(options, warm, arrivals)
        else:
            run = run_service(name, options, [part for part in (warm, settle) if part], arrivals, seed)
        runs.append(
            {
                **run,
                "policy": name,
                "rate": rate,
                "repeat": repeat,
                "warm_requests": warm_requests,
                "warm_seconds": warm_seconds,
                "workload": workload,
                "model": model or f"bundled-{model_size}",
            }
        )
        if "service_over_simulator" in run:
            say(f"service over simulator: {run['service_over_simulator']}")
        say(f"{name} at {rate:g}/s: {run['requests_per_s']} requests/s, mean {run['response_s']['mean']} s")
        results.write(runs)  # after each run, so that an interrupted comparison keeps its runs
    print_table(medians(runs), COLUMNS, "Medians of the repeats")
    if plot_dir:
        plot_over_rate(runs, lambda run: str(run["policy"]), plot_dir / "live.svg", logarithmic=False)
    short = [run for run in runs if run["completed"] != run["requests"]]
    if short:
        raise click.ClickException("not every request was completed: " + ", ".join(run["policy"] for run in short))


def run_service(
    name: str, options: ServiceOptions, before: list[list[DemoArrival]], arrivals: list[DemoArrival], seed: int
) -> Json:
    """Measure a new service under this policy or peer, after the requests in `before` were answered."""
    with fresh_service(name, options, arrivals, seed) as (service, state_dir):
        for part in before:
            answer_first(service, state_dir, part)
        with ServiceMonitor(service, state_dir) as monitor:
            learned = monitor.learned()
        began = time.monotonic()
        run = measure(service, state_dir, arrivals)
        run |= {"seconds": round(time.monotonic() - began, 1), "learned_before": learned}
        if options.paced is not None:
            with connection_to(service.database_url) as connection:
                run |= compared(connection, name, MACHINES[options.paced], options.workers, run["since"])
        return run


def answer_first(service: RunningService, state_dir: Path, arrivals: list[DemoArrival]) -> None:
    """Send requests that the service learns from, and wait until it has learned."""
    pause = threading.Event()
    with client_of_service(state_dir) as client:
        for submission in send_all(client, arrivals, threading.Event(), lambda *_: None):
            submission.result()
    with ServiceMonitor(service, state_dir) as monitor:
        while monitor.open_requests():
            pause.wait(POLL_S)
    pause.wait(SETTLE_S)


def measure(service: RunningService, state_dir: Path, arrivals: list[DemoArrival]) -> Json:
    """Replay the arrivals, wait for every answer, and gather the figures."""
    with client_of_service(state_dir) as client, ServiceMonitor(service, state_dir) as monitor:
        since, sent = client.stats()["now"], dict[str, DemoRequest]()
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send_all, client, arrivals, threading.Event(), sent.__setitem__)
            pause = threading.Event()
            while not sending.done() or monitor.open_requests():
                monitor.sample()
                pause.wait(POLL_S)
            for submission in sending.result():
                submission.result()
        while monitor.open_requests():
            monitor.sample()
            pause.wait(POLL_S)
        monitor.stop_clock()
        responses = [response for response in client.responses() if response["id"] in sent]
        last = max(response["completed_at"] or 0.0 for response in responses)
        stats = client.stats(since, last + 0.001)
        figures: Json = summary(responses, stats, len(arrivals), WHOLE_OR_CUT_OFF)
        figures |= {"pad_tokens": stats["pad_tokens"], "invalid_tokens": stats["invalid_tokens"]}
        return figures | monitor.figures(since) | {"since": since}


def _from_zero(arrivals: list[DemoArrival]) -> list[DemoArrival]:
    """Shift the arrivals so that the first one comes at once."""
    if not arrivals:
        return []
    return [replace(arrival, at_s=arrival.at_s - arrivals[0].at_s) for arrival in arrivals]


def medians(runs: list[Json]) -> list[Json]:
    """One row for each policy and rate: the median of each figure over the repeats that have it."""
    rows = []
    for policy, rate in dict.fromkeys((run["policy"], run["rate"]) for run in runs):
        same = [run | run["response_s"] for run in runs if (run["policy"], run["rate"]) == (policy, rate)]
        row: Json = {"policy": policy, "rate": rate}
        for column in list(COLUMNS.values())[2:]:
            key = column.partition(":")[0]
            known = [run[key] for run in same if run.get(key) is not None]
            row[key] = statistics.median(known) if known else None
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
