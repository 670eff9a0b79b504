"""Compares Magnus in front of another engine with clients that speak to that engine's server directly.

`python -m benchmarks.outside_engines --engine vllm --json F [--requests N --rates 0.7,1.0,1.3]`

The model is SmolLM2, and the server's memory is scarce. The server has half of the cores to itself, as it would have a
GPU; clients and Magnus have the other half. On shared cores the server's two threads, which wait for each other after
every product, would lose half of their speed to other processes.

Rates are shares of the saturation, which is measured first. Every system gets the same arrivals from the same client;
response times are the client's, from the instant at which a request was due. Systems:

- `direct`: clients send to the server
- `cap N`: at most N requests are at the server, the others wait in order of arrival
- `priority`: clients send to the server, with the lengths that Magnus predicted as the server's own priority
- `magnus`: the policy `fusion`, one worker in front of the server, no setting but the server's address
"""

import json
import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.inputs.request_sources import Workload, arrivals_of
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.outside_engines.open_loop import LoadSampler, Target, TimedAnswer, figures, replay
from benchmarks.outside_engines.server_processes import Dtype, EngineKind, ServerTerms, running_engine
from benchmarks.service_start import client_of_service, facts_of
from cli.demo.demo_workload import DemoArrival
from cli.option_types import CommaSeparated
from cli.service_access import settings_with

MEAN_ROW_TOKENS = 130  # mean tokens of a row of this workload on SmolLM2: its prompt, 72 of its answer, half a page
SATURATION_REQUESTS = 96  # requests sent at once: six times what fits
SYSTEMS = ("magnus", "direct", "cap", "priority")
MAX_ROWS = 64  # the most rows in the server
SLOT_TOKENS = 512  # tokens of a slot of llama.cpp: more than the longest prompt with the longest answer
MAX_OUTPUT_TOKENS, WARM_REQUESTS = 256, 40  # tokens of an answer; requests that Magnus answers before the first rate
MEAN_ROWS = 16  # mean rows that the server's KV memory holds
MODEL = "smollm2"
WORKLOAD: Workload = "instructions"
DTYPE: Dtype = "bfloat16"
WARM_SEED_OFFSET = 1_000_003  # added to seeds, so that warm-up requests differ from those of the runs
COLUMNS = {
    "rate": "rate",
    "system": "system",
    "req/s": "requests_per_s",
    "mean s": "response_s.mean",
    **{name.upper(): f"response_s.{name}" for name in ("p50", "p95", "p99")},
    "waiting P95": "engine_waiting_p95",
    "preemptions": "preemptions",
    "KV use": "kv_use_mean",
    "failed": "failed",
}
PRIORITY_UNKNOWN = 10_000  # lower priority than every predicted length


@click.command(help=__doc__)
@click.option("--engine", type=click.Choice(["vllm", "llamacpp"]), required=True)
@json_option
@click.option("--requests", default=120, show_default=True, help="Of each run.")
@click.option("--rates", type=CommaSeparated(float), default="0.7,1.0,1.3", show_default=True, help="Of saturation.")
@click.option("--systems", type=CommaSeparated(click.Choice(SYSTEMS)), default=",".join(SYSTEMS), show_default=True)
@click.option("--caps", type=CommaSeparated(int), default="8,16,32,64", show_default=True, help="Of system `cap`.")
def main(
    engine: EngineKind, requests: int, rates: list[float], systems: list[str], caps: list[int], results: Results
) -> None:
    """Compare the systems at each rate; all runs are written after each of them."""
    cores = leave_cores()
    terms = replace(server_terms(engine), cores=cores, threads=len(cores) or 1)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="magnus-outside-")))
        server = stack.enter_context(running_engine(engine, terms, logs))
        direct = Target(server.url, server.model)
        saturation = measured_saturation(direct)
        arrivals = {share: arrivals_of(WORKLOAD, requests, share * saturation, 0) for share in rates}
        rows: list[Json] = []
        found = {
            "conditions": {"engine": engine, "requests": requests, "model": MODEL, "dtype": DTYPE, "workload": WORKLOAD}
            | {"max_output_tokens": MAX_OUTPUT_TOKENS, "warm_requests": WARM_REQUESTS}
            | {"kv_tokens": terms.kv_tokens, "server_cores": len(cores)},
            "saturation_per_s": saturation,
            "rows": rows,
        }

        def run(system: str, share: float, target: Target, **how: Any) -> list[TimedAnswer]:
            with LoadSampler(server.url) as load:
                answers = replay(target, arrivals[share], MAX_OUTPUT_TOKENS, **how)
            rows.append({"system": system, "rate": share, **figures(answers), **load.figures()})
            say(json.dumps(rows[-1]))
            results.write(found)
            return answers

        priorities: dict[float, list[int]] = {}
        if "magnus" in systems:
            options = ServiceOptions(
                1, "1GiB", str(terms.model), max_output_tokens=MAX_OUTPUT_TOKENS, engines=(server.url,)
            )
            with fresh_service("fusion", options) as (_, state_dir):
                magnus = _service(state_dir)
                replay(magnus, _at_once(WARM_REQUESTS, WARM_SEED_OFFSET), MAX_OUTPUT_TOKENS)
                for share in rates:
                    predicted = [answer.predicted_tokens for answer in run("magnus", share, magnus)]
                    priorities[share] = [PRIORITY_UNKNOWN if tokens is None else tokens for tokens in predicted]
        for share in rates:
            if "direct" in systems:
                run("direct", share, direct)
            for cap in caps if "cap" in systems else ():
                run(f"cap {cap}", share, direct, cap=cap)
            if "priority" in systems and engine == "vllm" and share in priorities:
                run("priority", share, direct, priorities=priorities[share])
    print_table(rows, COLUMNS)


def server_terms(engine: EngineKind) -> ServerTerms:
    """Describe a server whose memory holds MEAN_ROWS mean rows; llama.cpp, which cannot preempt, has slots."""
    terms = ServerTerms(Path(settings_with(model=MODEL).model), MODEL, MAX_ROWS, dtype=DTYPE)
    if engine == "llamacpp":
        return replace(terms, max_rows=MEAN_ROWS, kv_tokens=MEAN_ROWS * SLOT_TOKENS)
    blocks = -(-MEAN_ROWS * MEAN_ROW_TOKENS // terms.block_tokens)
    return replace(terms, kv_tokens=blocks * terms.block_tokens)


def leave_cores() -> tuple[int, ...]:
    """Keep this process and its children off half of the cores; returns these cores, none on a single-core machine."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if half:
        os.sched_setaffinity(0, cores[half:])
    return tuple(cores[:half])


def _service(state_dir: Path) -> Target:
    key = (state_dir / "api-key").read_text().strip()
    with client_of_service(state_dir) as client:
        return Target(facts_of(state_dir).url, client.model(), key)


def _at_once(requests: int, seed: int) -> list[DemoArrival]:
    return [replace(one, at_s=0.0) for one in arrivals_of(WORKLOAD, requests, 1.0, seed)]


def measured_saturation(target: Target) -> float:
    """Measure the rate of answers of a server that is never idle, without the first and last tenth."""
    answers = replay(target, _at_once(SATURATION_REQUESTS, WARM_SEED_OFFSET + 1), MAX_OUTPUT_TOKENS)
    done = sorted(answer.done_s for answer in answers)
    tenth = len(done) // 10
    return (len(done) - 2 * tenth) / (done[-1 - tenth] - done[tenth])


if __name__ == "__main__":
    main()
