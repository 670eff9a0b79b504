"""Magnus in front of another engine, compared with clients that speak to that engine's server themselves.

`python -m benchmarks.outside_engines --engine vllm --json F [--requests N --rates 0.7,1.0,1.3]`

The model is the real one, the server's memory scarce. The server has half of the cores for itself, as it would have a
GPU; clients and Magnus have the others: two threads that wait for each other after every product lose half of their
speed to whatever else runs on their cores, and a run would measure that.

Rates are shares of the saturation that is measured first. Every system gets the same arrivals from the same client;
response times are the client's, from the instant at which a request was due. Systems:

- `direct`: clients straight at the server
- `cap N`: at most N requests at the server, the others wait in order of arrival
- `priority`: straight at the server, with the lengths that Magnus predicted as the server's own priority
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

from benchmarks.harness import CommaSeparated, Json, Results, json_option, print_table, say
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.outside_engines.open_loop import LoadSampler, Target, TimedAnswer, figures, replay
from benchmarks.outside_engines.server_processes import Dtype, EngineKind, EngineServer, ServerTerms, running_engine
from benchmarks.request_sources import arrivals_of
from cli.api_client import Client
from cli.demo_workload import DemoArrival
from cli.hosting.service_files import api_address
from cli.output import CommandFailed
from cli.service_access import settings_with
from settings import read_settings

MEAN_ROW_TOKENS = 130  # of the workload `instructions` on SmolLM2: the prompt, 72 of the answer, half a page
SATURATION_REQUESTS = 96  # all at once; six times what fits
SYSTEMS = ("magnus", "direct", "cap", "priority")
CAPS = (8, 16, 32, 64)
MAX_ROWS = 64  # of the server
SLOT_TOKENS = 512  # of a slot of llama.cpp: more than the longest prompt with the longest answer
CONDITIONS = ("engine", "model", "dtype", "workload", "requests", "max_output_tokens", "warm_requests", "seed")
WARM_SEED_OFFSET = 1_000_003  # other requests than those of the runs
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
PRIORITY_UNKNOWN = 10_000  # behind every predicted length


@click.command(help=__doc__)
@click.option("--engine", type=click.Choice(["vllm", "llamacpp"]), required=True)
@json_option
@click.option("--requests", default=120, show_default=True, help="Of each run.")
@click.option(
    "--rates",
    type=CommaSeparated(float),
    default="0.7,1.0,1.3",
    show_default=True,
    help="Shares of the measured saturation.",
)
@click.option("--systems", type=CommaSeparated(click.Choice(SYSTEMS)), default=",".join(SYSTEMS), show_default=True)
@click.option(
    "--caps", type=CommaSeparated(int), default=",".join(map(str, CAPS)), show_default=True, help="Of the system `cap`."
)
@click.option("--model", default="smollm2", show_default=True, help="A fetched model's name or a directory.")
@click.option("--workload", default="instructions", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16", show_default=True)
@click.option("--mean-rows", default=16, show_default=True, help="That the server's KV memory holds.")
@click.option("--max-output-tokens", default=256, show_default=True)
@click.option("--warm-requests", default=40, show_default=True, help="Magnus's answers before the first rate.")
@click.option("--seed", default=0, show_default=True)
def main(rates: list[float], systems: list[str], caps: list[int], results: Results, **given: Any) -> None:
    """Compare the systems at each rate; each run is written when it is done, and one that the file has is kept."""
    terms = _terms(given["engine"], given["model"], given["dtype"], given["mean_rows"])
    cores = leave_cores()
    terms = replace(terms, cores=cores, threads=len(cores) or 1)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="magnus-outside-")))
        server = stack.enter_context(running_engine(given["engine"], terms, logs))
        direct = Target(server.url, server.model)
        conditions = {key: given[key] for key in CONDITIONS} | {
            "kv_tokens": terms.kv_tokens,
            "server_cores": len(cores),
        }
        compared = Comparison(server, conditions, results)
        if compared.saturation is None:
            compared.saturation = _saturation(direct, given["workload"], given["seed"], compared.limit)
            compared.save()
        arrivals = {
            share: arrivals_of(given["workload"], given["requests"], share * compared.saturation, given["seed"])
            for share in rates
        }
        if "magnus" in systems and any(compared.lacks("magnus", share) for share in rates):
            options = ServiceOptions(
                1, "1GiB", str(terms.model), max_output_tokens=compared.limit, engines=(server.url,)
            )
            with fresh_service("fusion", options, [], given["seed"]) as (_, state_dir):
                magnus = _service(state_dir)
                warm = arrivals_of(given["workload"], given["warm_requests"], 1.0, given["seed"] + WARM_SEED_OFFSET)
                replay(magnus, [replace(one, at_s=0.0) for one in warm], compared.limit)
                for share in rates:
                    answers = compared.run("magnus", share, magnus, arrivals[share])
                    if answers:
                        compared.predicted[f"{share:g}"] = [answer.predicted_tokens for answer in answers]
                        compared.save()
        for share in rates:
            if "direct" in systems:
                compared.run("direct", share, direct, arrivals[share])
            for cap in caps if "cap" in systems else ():
                compared.run(f"cap {cap}", share, direct, arrivals[share], cap=cap)
            predicted = compared.predicted.get(f"{share:g}")
            if "priority" in systems and given["engine"] == "vllm" and predicted:
                priorities = [PRIORITY_UNKNOWN if tokens is None else tokens for tokens in predicted]
                compared.run("priority", share, direct, arrivals[share], priorities=priorities)
    print_table(compared.rows, COLUMNS)


class Comparison:
    """Runs the systems one after the other on one server, and keeps what was found in a file."""

    def __init__(self, server: EngineServer, conditions: Json, results: Results) -> None:
        """Goes on with what the file holds; raises CommandFailed if that was measured under other conditions."""
        kept: Json = results.earlier() or {}
        if kept and kept["conditions"] != conditions:
            raise CommandFailed(f"{results.file} was measured under other conditions: {kept['conditions']}")
        self.saturation: float | None = kept.get("saturation_per_s")
        self.rows: list[Json] = kept.get("rows", [])
        self.predicted: dict[str, list[int | None]] = kept.get("predicted", {})
        self.limit: int = conditions["max_output_tokens"]
        self._server, self._conditions, self._results = server, conditions, results

    def lacks(self, system: str, rate: float) -> bool:
        """Whether this run is still to be done."""
        return all((row["system"], row["rate"]) != (system, rate) for row in self.rows)

    def run(
        self, system: str, rate: float, target: Target, arrivals: list[DemoArrival], **how: Any
    ) -> list[TimedAnswer]:
        """Replay the arrivals while the server's own figures are sampled; nothing if the file has this run."""
        if not self.lacks(system, rate):
            return []
        with LoadSampler(self._server.url) as load:
            answers = replay(target, arrivals, self.limit, **how)
        self.rows.append({"system": system, "rate": rate, **figures(answers), **load.figures()})
        self.save()
        say(json.dumps(self.rows[-1]))
        return answers

    def save(self) -> None:
        """Write the file."""
        kept = {"conditions": self._conditions, "saturation_per_s": self.saturation, "rows": self.rows}
        self._results.write({**kept, "predicted": self.predicted})


def _terms(engine: EngineKind, model: str, dtype: Dtype, mean_rows: int) -> ServerTerms:
    """A server of this model whose memory holds so many mean rows; llama.cpp, which cannot preempt, has slots."""
    terms = ServerTerms(Path(settings_with(model=model).model), model, MAX_ROWS, dtype=dtype)
    if engine == "llamacpp":
        return replace(terms, max_rows=mean_rows, kv_tokens=mean_rows * SLOT_TOKENS)
    blocks = -(-mean_rows * MEAN_ROW_TOKENS // terms.block_tokens)
    return replace(terms, kv_tokens=blocks * terms.block_tokens)


def leave_cores() -> tuple[int, ...]:
    """Keep this process, and all that it starts, off half of the cores; returns these, none on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if half:
        os.sched_setaffinity(0, cores[half:])
    return tuple(cores[:half])


def _service(state_dir: Path) -> Target:
    url, key = api_address(read_settings(state_dir=state_dir))
    with Client(url, key) as client:
        return Target(url, client.model(), key)


def _saturation(target: Target, workload: str, seed: int, limit: int) -> float:
    """Answers a second of a server that is never out of work, without the first and the last tenth of them."""
    drawn: list[DemoArrival] = arrivals_of(workload, SATURATION_REQUESTS, 1.0, seed + WARM_SEED_OFFSET + 1)
    answers = replay(target, [replace(one, at_s=0.0) for one in drawn], limit)
    done = sorted(answer.done_s for answer in answers)
    tenth = len(done) // 10
    return (len(done) - 2 * tenth) / (done[-1 - tenth] - done[tenth])


if __name__ == "__main__":
    main()
