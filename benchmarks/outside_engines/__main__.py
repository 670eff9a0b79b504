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

Requests are the demo's instructions. With `--answers F --data DIR` they are other ones instead:
Magnus learns from the first `--learned` answers of F before each of its runs, and the others' requests are measured.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.generated_answers import DIRECTORY
from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.outside_engines.compared_requests import ComparedRequests, demo_requests, known_requests
from benchmarks.outside_engines.open_loop import LoadSampler, Target, TimedAnswer, figures, replay
from benchmarks.outside_engines.server_processes import Dtype, EngineKind, EngineServer, ServerTerms, running_engine
from benchmarks.service_start import client_of_service, connection_to, facts_of
from cli.demo.demo_workload import DemoArrival
from cli.hosting.service_access import settings_with
from cli.option_types import CommaSeparated
from scheduling.rank_correlation import kendall_tau

MEAN_ROW_TOKENS = 130  # the mean tokens of a row of this workload on SmolLM2: prompt, 72 of the answer, half a page
SATURATION_REQUESTS = 96  # the requests sent at once to measure the saturation: six times as many as fit
SYSTEMS = ("magnus", "direct", "cap", "priority")
MAX_ROWS = 64  # the most rows that the server runs at once
SLOT_TOKENS = 512  # the tokens of a slot of llama.cpp, more than the longest prompt with the longest answer
MAX_OUTPUT_TOKENS, WARM_REQUESTS = 256, 40  # the most tokens of an answer; requests that Magnus answers before a run
MEAN_ROWS = 16  # the server's KV memory holds this many rows of mean length
MODEL = "smollm2"
DTYPE: Dtype = "bfloat16"
WARM_SEED_OFFSET = 1_000_003  # added to seeds, so that warm-up requests differ from those of the runs
COLUMNS = {
    "round": "round",
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
PRIORITY_UNKNOWN = 10_000  # a number above every predicted length, which therefore goes last


@dataclass(frozen=True)
class ComparedSystems:
    """Runs systems against one server; the figures of each run are written as it ends."""

    compared: ComparedRequests
    server: EngineServer
    found: Json  # the figures that are written; its `rows` are the runs
    results: Results

    def run_round(self, of_round: Json, arrivals: list[DemoArrival], systems: list[str], caps: list[int]) -> None:
        """Run each of these systems once; Magnus runs as a new service."""
        direct = Target(self.server.url, self.server.model)
        priorities: list[int] | None = None
        if "magnus" in systems:
            predicted = [answer.predicted_tokens for answer in self.run_magnus(of_round, arrivals)]
            priorities = [PRIORITY_UNKNOWN if tokens is None else tokens for tokens in predicted]
        if "direct" in systems:
            self.run("direct", of_round, direct, arrivals)
        for cap in caps if "cap" in systems else ():
            self.run(f"cap {cap}", of_round, direct, arrivals, cap=cap)
        if "priority" in systems and self.server.kind == "vllm" and priorities:
            self.run("priority", of_round, direct, arrivals, priorities=priorities)

    def run(
        self, system: str, of_round: Json, target: Target, arrivals: list[DemoArrival], **how: Any
    ) -> list[TimedAnswer]:
        """Replay the arrivals to the target and write the figures of the system; returns the answers."""
        with LoadSampler(self.server.url) as load:
            answers = replay(target, arrivals, MAX_OUTPUT_TOKENS, **how)
        self.found["rows"].append({"system": system, **of_round, **figures(answers), **load.figures()})
        say(json.dumps(self.found["rows"][-1]))
        self.results.write(self.found)
        return answers

    def run_magnus(self, of_round: Json, arrivals: list[DemoArrival]) -> list[TimedAnswer]:
        """Start a service that learns the known answers, and run it; its figures count the predictors' versions."""
        options = ServiceOptions(
            1, "1GiB", str(self.server.terms.model), max_output_tokens=MAX_OUTPUT_TOKENS, engines=(self.server.url,)
        )
        with fresh_service("fusion", options, self.compared.log) as (service, state_dir):
            magnus = _service(state_dir)
            replay(magnus, self.compared.at_once(WARM_REQUESTS, WARM_SEED_OFFSET), MAX_OUTPUT_TOKENS)
            before = _predictions(service.database_url)
            answers = self.run("magnus", of_round, magnus, arrivals)
            self.found["rows"][-1] |= {
                "predictions": dict(_predictions(service.database_url) - before),
                "tau": round(_tau(answers), 4),
            }
        self.results.write(self.found)
        return answers


@click.command(help=__doc__)
@click.option("--engine", type=click.Choice(["vllm", "llamacpp"]), required=True)
@json_option
@click.option("--requests", default=120, show_default=True, help="Of each run.")
@click.option("--rates", type=CommaSeparated(float), default="0.7,1.0,1.3", show_default=True, help="Of saturation.")
@click.option("--systems", type=CommaSeparated(click.Choice(SYSTEMS)), default=",".join(SYSTEMS), show_default=True)
@click.option("--caps", type=CommaSeparated(int), default="8,16,32,64", show_default=True, help="Of system `cap`.")
@click.option("--rounds", default=1, show_default=True, help="Rounds; each runs every system at every rate once.")
@click.option(
    "--answers", type=DIRECTORY, help="The model's own answers, as `benchmarks.generated_answers` makes them."
)
@click.option("--learned", default=600, show_default=True, help="Of these answers, before each run of Magnus.")
@click.option("--data", type=DIRECTORY, help="The data sets of the answers.")
def main(
    engine: EngineKind,
    requests: int,
    rates: list[float],
    systems: list[str],
    caps: list[int],
    rounds: int,
    answers: Path | None,
    learned: int,
    data: Path | None,
    results: Results,
) -> None:
    """Measure the saturation, then run the rounds."""
    cores = leave_cores()
    terms = replace(server_terms(engine), cores=cores, threads=len(cores) or 1)
    compared = known_requests(str(terms.model), data, answers, learned) if answers else demo_requests()
    with (
        tempfile.TemporaryDirectory(prefix="magnus-outside-") as logs,
        running_engine(engine, terms, Path(logs)) as server,
    ):
        saturation = measured_saturation(Target(server.url, server.model), compared)
        conditions = {
            "engine": engine,
            "requests": requests,
            "model": MODEL,
            "dtype": DTYPE,
            "workload": "mixed instructions" if answers else "instructions",
            "max_output_tokens": MAX_OUTPUT_TOKENS,
            "answers_learned": len(compared.log),
            "warm_requests": WARM_REQUESTS,
            "kv_tokens": terms.kv_tokens,
            "server_cores": len(cores),
        }
        found: Json = {"conditions": conditions, "saturation_per_s": saturation, "rows": []}
        comparison = ComparedSystems(compared, server, found, results)
        for number, share in product(range(1, rounds + 1), rates):
            arrivals = compared.arrivals(requests, share * saturation, 0)
            comparison.run_round({"round": number, "rate": share}, arrivals, systems, caps)
    print_table(found["rows"], COLUMNS)


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


def _predictions(database_url: str) -> Counter[str]:
    """Count the requests that each version of the length predictor has predicted."""
    with connection_to(database_url) as connection:
        found = connection.exec_driver_sql("select predictor_version, count(*) from requests group by 1")
        return Counter({str(version): number for version, number in found})


def _tau(answers: Sequence[TimedAnswer]) -> float:
    pairs = [(one.predicted_tokens, one.tokens) for one in answers if one.predicted_tokens is not None]
    predicted, tokens = np.array(pairs, np.float64).reshape(-1, 2).T
    return kendall_tau(predicted, tokens)


def measured_saturation(target: Target, compared: ComparedRequests) -> float:
    """Return the answers a second of a server that is never idle, without the first and the last tenth of answers."""
    answers = replay(target, compared.at_once(SATURATION_REQUESTS, WARM_SEED_OFFSET + 1), MAX_OUTPUT_TOKENS)
    done = sorted(answer.done_s for answer in answers)
    tenth = len(done) // 10
    return (len(done) - 2 * tenth) / (done[-1 - tenth] - done[tenth])


if __name__ == "__main__":
    main()
