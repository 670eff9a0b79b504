"""Compares policies on the real stack: the same arrivals over HTTP, a new service for each run, one table.

`python -m benchmarks.live --policies vs,magnus,fusion --rates 40,160 --requests 1000 --json F --plot DIR`

`python -m benchmarks.live --model smollm2 --workload instructions --workers 1 --rates 2 --warm-requests 60`

`python -m benchmarks.live --policies vs,magnus,fusion --paced v100 --workers 7 --rates 40`

Repeats are interleaved: each policy and peer runs once before any runs again. The table has the medians of the repeats.
Peers serve the same API in other ways (`benchmarks/live/peer_processes.py`). The peer `vllm` is vLLM's own server
without our service, so that only the clients' figures are known. `magnus-published` is `magnus` with
MAGNUS_PARAMETERS=magnus=published, and `oracle` is `fusion` whose predictions are the true lengths, where those are
known.

Each run is written as it ends. With `--resume` the runs that the file has are not repeated, so that the same command
goes on where it was stopped; `--minutes` bounds each start. `python -m benchmarks.live.published_tables` knows the
terms of the published tables, and `python -m benchmarks.live.compared_runs F` prints runs beside the papers' and the
simulator's.
"""

import tempfile
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from benchmarks.experiment import Experiment, medians
from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.inputs.changed_models import MODEL_SIZES, ModelSize, enlarged_model, kv_growth
from benchmarks.inputs.request_sources import Workload
from benchmarks.live.fresh_service import ORACLE, PEERS, ServiceOptions, fresh_service
from benchmarks.live.live_figures import ServiceMonitor
from benchmarks.live.live_workload import LiveWorkload, make_workload
from benchmarks.live.measured_run import answer_first, await_estimator, measure
from benchmarks.live.run_records import RunRecords, RunTerms
from benchmarks.outside_engines.open_loop import DIRECT_SERVERS, run_direct
from benchmarks.pictures import plot_over_rate
from benchmarks.scale.paced_engine import MACHINES, machine_of
from benchmarks.scale.run_figures import compared
from benchmarks.service_start import connection_to
from cli.demo.demo_workload import DemoArrival
from cli.hosting.service_access import POLICIES, VARIANTS, settings_with
from cli.option_types import CommaSeparated
from inference.prompts.prompt_format import load_prompt_format
from settings import BUNDLED_MODEL

# The first requests come at this rate a second, which is more than a real model serves on a CPU, so that they batch.
WARM_RATE = 8.0
TEACHERS_SEED_OFFSET = 1_000_000  # requests that teach serving times have seeds of their own; any large number works
SIX_ROWS_MIB = 40  # the memory of six rows of Eq. (1), each of 1,024 + 1,024 tokens of the bundled model
# These policies use the serving time estimator.
HRRN = ("magnus", *(name for name, (policy, _) in VARIANTS.items() if policy == "magnus"))
POLICY_LIST = CommaSeparated(click.Choice([*POLICIES, *VARIANTS, ORACLE]))
PEER_LIST = CommaSeparated(click.Choice([*PEERS, *DIRECT_SERVERS]))
COLUMNS = {  # columns of the table: medians over the repeats
    "policy": "policy",
    "rate": "rate:g",
    "req/s": "requests_per_s:.1f",
    "to last arrival": "requests_per_s_to_last_arrival:.1f",
    "valid tok/s": "valid_tokens_per_s:.0f",
    "valid": "valid_token_share:.0%",
    "batch": "mean_batch_size:.1f",
    "mean s": "response_s.mean:.2f",
    "P50": "response_s.p50:.2f",
    "P95": "response_s.p95:.2f",
    "P99": "response_s.p99:.2f",
    "max": "response_s.max:.2f",
    "idle": "worker_idle_share:.1%",
    "gap P50 ms": "gap_ms_p50:.0f",
    "gap P99 ms": "gap_ms_p99:.0f",
    "decision ms": "decision_ms:.2f",
    "worker CPU": "worker_cpu_share:.0%",
    "control CPU": "control_cpu_share:.1%",
    "not engine": "cpu_outside_engine:.1%",
    "ETA error": "eta_error:.0%",
}
FILE = click.Path(exists=True, path_type=Path)


@click.command(help=__doc__)
@click.option("--policies", type=POLICY_LIST, default="vs,magnus,scls,baton,fusion", show_default=True)
@click.option("--peers", type=PEER_LIST, default="", help=f"Of {', '.join((*PEERS, *DIRECT_SERVERS))}.")
@click.option("--rates", type=CommaSeparated(float), default="180", show_default=True, help="Arrivals a second.")
@click.option("--workers", default=2, show_default=True, help="Workers of each service, or processes of a peer.")
@click.option("--requests", default=1000, show_default=True, help="Requests a run.")
@click.option("--warm-requests", default=0, show_default=True, help="Other requests, answered before the measurement.")
@click.option("--warm-seconds", default=0.0, show_default=True, help="Arrivals at the run's rate after those.")
@click.option("--await-estimator", "estimator_s", default=0.0, help="Most seconds to teach `magnus` serving times.")
@click.option("--workload", type=click.Choice(get_args(Workload)), default="toy", show_default=True)
@click.option("--data", type=FILE, help="Directory of requests, for the workload tasks.")
@click.option("--answers", type=FILE, help="The model's own answers to them (`benchmarks.generated_answers`).")
@click.option("--model", help="A fetched model's name or a directory; the bundled one if unset.")
@click.option("--model-size", type=click.Choice(MODEL_SIZES), default="1x", help="Of the bundled model's parameters.")
@click.option("--max-prompt-tokens", type=click.IntRange(1), default=1024, show_default=True, help="Lmax.")
@click.option("--max-output-tokens", type=click.IntRange(1), default=1024, show_default=True, help="Gmax.")
@click.option("--paced", type=click.Choice(sorted(MACHINES)), help="Paced workers, and the simulator beside them.")
@click.option("--headroom", default=0.0, help="Their memory beyond Θ, as a share of it: 3/7 in Magnus's evaluation.")
@click.option("--kv-budget", help="Of each worker; six rows of Eq. (1) of the bundled model at its size if unset.")
@click.option("--predictor", help="MAGNUS_PREDICTOR of each service.")
@click.option("--encoder", help="MAGNUS_ENCODER of each service.")
@click.option("--repeats", default=1, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Leave out the runs that the file of --json has.")
@click.option("--minutes", type=float, help="Start no run after so many minutes.")
@json_option
@click.option("--plot", "plot_dir", type=click.Path(path_type=Path, file_okay=False), help="Write a picture there.")
def main(
    policies: list[str],
    peers: list[str],
    rates: list[float],
    data: Path | None,
    answers: Path | None,
    model: str | None,
    model_size: ModelSize,
    kv_budget: str | None,
    repeats: int,
    resume: bool,
    minutes: float | None,
    results: Results,
    plot_dir: Path | None,
    **recorded: Any,
) -> None:
    """Run each policy and peer at each rate on a fresh stack and compare; each run records the other options."""
    drawn_from: Workload = recorded["workload"]
    if model and model_size != "1x":
        raise click.BadParameter("only the bundled model can be enlarged", param_hint="--model-size")
    if drawn_from == "tasks" and data is None:
        raise click.BadParameter("tasks are drawn from --data", param_hint="--workload")
    directory = settings_with(model=model).model if model else None  # resolves the name of a fetched model
    if model_size != "1x":
        made_in = click.get_current_context().with_resource(tempfile.TemporaryDirectory(prefix="magnus-enlarged-"))
        directory = str(enlarged_model(model_size, Path(made_in)))
    served = directory or str(BUNDLED_MODEL)
    kv_budget = kv_budget or f"{SIX_ROWS_MIB * kv_growth(model_size):.0f}MiB"
    of_service = {field.name: recorded[field.name] for field in fields(ServiceOptions) if field.name in recorded}
    options = ServiceOptions(kv_budget=kv_budget, model=directory, **of_service)
    prompts = load_prompt_format(served)
    limits = recorded["max_prompt_tokens"], recorded["max_output_tokens"]
    sent = make_workload(drawn_from, prompts, served, data, answers, *limits)
    records = RunRecords(results, resume, minutes)
    named = Path(model).name if model else f"bundled-{model_size}"
    recorded |= {"model": named, "kv_budget": kv_budget}

    def figures(name: str, part: tuple[float, int]) -> Json:
        terms = RunTerms(name, *part, **recorded)
        return records.run(terms, partial(measured, terms, options, sent)) or {}

    # Each repeat has arrivals of its own, which are the same for all systems.
    workload = {f"{rate:g}/s, repeat {repeat}": (rate, repeat) for repeat in range(repeats) for rate in rates}
    for run in Experiment(workload, {name: name for name in (*policies, *peers)}, figures).runs():
        if "requests_per_s" in run:
            mean_s = run["response_s"]["mean"]
            say(f"{run['system']} at {run['rate']:g}/s: {run['requests_per_s']} requests/s, mean {mean_s} s")
    runs = [run for run in records.runs if "error" not in run]
    print_table(medians(runs, ("policy", "rate")), COLUMNS, "Medians of the repeats")
    if plot_dir:
        plot_over_rate(runs, lambda run: str(run["policy"]), plot_dir / "live.svg", logarithmic=False)
    short = [run for run in records.runs if "error" in run or run["completed"] != run["requests"]]
    if short:
        raise click.ClickException("not every request was completed: " + ", ".join(run["policy"] for run in short))


def measured(terms: RunTerms, options: ServiceOptions, workload: LiveWorkload) -> Json:
    """Start a service, let it answer other requests first, and measure one run."""
    settling = round(terms.rate * terms.warm_seconds)
    before = terms.warm_requests + settling
    drawn = workload.draw(before + terms.requests, terms.rate, terms.seed + terms.repeat)
    warm = [replace(one, at_s=n / WARM_RATE) for n, one in enumerate(drawn[: terms.warm_requests])]
    settle, arrivals = _from_zero(drawn[terms.warm_requests : before]), _from_zero(drawn[before:])
    if terms.policy in DIRECT_SERVERS:
        return run_direct(options, warm, arrivals)
    examples = () if terms.policy in PEERS else workload.examples(drawn, terms.seed)
    teachers = workload.draw(terms.requests, terms.rate, terms.seed + TEACHERS_SEED_OFFSET)
    true_tokens = workload.true_tokens([*drawn, *teachers])
    with fresh_service(terms.policy, options, examples, true_tokens) as (service, state_dir):
        for part in (warm, settle):
            if part:
                answer_first(service, state_dir, part)
        if terms.policy in HRRN and terms.estimator_s:
            await_estimator(service, state_dir, teachers, terms.estimator_s)
        with ServiceMonitor(service, state_dir) as monitor:
            learned = monitor.learned()
        began = time.monotonic()
        run = measure(service, state_dir, arrivals)
        run |= {"seconds": round(time.monotonic() - began, 1), "learned_before": learned}
        if options.paced is not None and terms.policy not in PEERS:
            machine = MACHINES[machine_of(terms.policy, options.paced)]
            with connection_to(service.database_url) as connection:
                run |= compared(connection, terms.policy, machine, options.workers, run["since"], options.headroom)
        return run


def _from_zero(arrivals: list[DemoArrival]) -> list[DemoArrival]:
    """Shift the arrivals so that the first one comes at once."""
    return [replace(arrival, at_s=arrival.at_s - arrivals[0].at_s) for arrival in arrivals]


if __name__ == "__main__":
    main()
