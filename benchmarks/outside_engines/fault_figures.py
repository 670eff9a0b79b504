"""Measures the work lost when a server fails, and the time until a cancelled row has left it.

`python -m benchmarks.outside_engines.fault_figures --engine vllm --json F`

The server has the bundled model. `kill` and `freeze`: a whole service in front of the server, 300 jobs; when a third is
answered, the server is killed (SIGKILL) and started again, or stopped for 20 s (SIGSTOP). Computed tokens are the
server's own count, so that tokens computed twice are seen from outside. `cancel`: rows are removed from the engine, and
the time is measured until the server reports that they no longer run.
"""

import json
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import Json, Results, json_option, percentile, say, until
from benchmarks.inputs.changed_models import make_endless_model
from benchmarks.inputs.request_sources import arrivals_of
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.outside_engines.server_processes import EngineKind, EngineServer, ServerTerms, running_engine
from benchmarks.service_start import client_of_service
from cli.demo.demo_workload import DemoArrival
from cli.option_types import CommaSeparated
from inference.engine_requests import DecodingRequest
from inference.prompts.prompt_format import load_prompt_format
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_load import load_from_metrics
from inference.remote.server_probe import connect
from inference.toy.toy_applications import toy_requests
from settings import BUNDLED_MODEL

FAULTS = CommaSeparated(click.Choice(["kill", "freeze", "cancel"]))
REQUESTS = 300
RATE = 60.0  # the workload needs a rate, which has no effect here: requests are sent as fast as they are accepted
SENDERS = 8  # this many clients submit at once
POLL_S = 0.05
THIRD_WITHIN_S = 600.0  # any value well above the time to answer a third of the jobs works
FROZEN_S = 20.0
KV_TOKENS = 65536  # more than all rows need
CANCELS = 100
ROWS = 32  # the server runs this many rows while single ones are cancelled
LIMIT = 200  # the most tokens of an answer; answers to toy requests have at most about 130
ENDLESS_LIMIT, OLD_TOKENS = 1900, 1200  # a row's limit, within the 8,192 positions; rows above OLD_TOKENS are replaced
GENERATED = ("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total")


@click.command(help=__doc__)
@click.option("--engine", type=click.Choice(["vllm", "llamacpp"]), required=True)
@click.option("--faults", type=FAULTS, default="kill,freeze,cancel", show_default=True)
@json_option
def main(engine: EngineKind, faults: list[str], results: Results) -> None:
    """Measure each fault and print what was found."""
    found: list[Json] = []
    with tempfile.TemporaryDirectory(prefix="magnus-faults-") as logs:
        for fault in faults:
            endless = fault == "cancel"
            model = make_endless_model(Path(logs)) if endless else BUNDLED_MODEL
            with running_engine(engine, ServerTerms(model, kv_tokens=KV_TOKENS), Path(logs)) as server:
                row = cancels(server) if endless else amid_requests(server, fault)
            found.append({"engine": engine, "fault": fault, **row})
            say(json.dumps(found[-1]))
            results.write(found)


def amid_requests(server: EngineServer, fault: str) -> Json:
    """Send 300 requests through a service, and cause the fault when a third of them is answered."""
    arrivals = arrivals_of("toy", REQUESTS, RATE, 0)
    options = ServiceOptions(1, "1GiB", str(server.terms.model), engines=(server.url,))
    with fresh_service("fusion", options) as (_, state_dir), ThreadPoolExecutor(SENDERS) as senders:
        with client_of_service(state_dir) as client:
            model, before, began = client.model(), generated_tokens(server.url), time.monotonic()
            bodies = [_body(model, arrival) for arrival in arrivals]
            jobs = [job["id"] for job in senders.map(client.create, bodies)]
            completed = partial(client.responses, status="completed")
            until(lambda: sum(1 for _ in completed()) >= REQUESTS // 3, THIRD_WITHIN_S, POLL_S)
            lost, down_s = _strike(server, fault)
            answers = [client.wait(job) for job in jobs]
            seconds = time.monotonic() - began
        computed = lost + generated_tokens(server.url) - before
    return amounts(answers, computed) | {"seconds": round(seconds, 1), "down_s": round(down_s, 1)}


def _body(model: str, arrival: DemoArrival) -> Json:
    request = arrival.request
    return {
        "model": model,
        "instructions": request.instruction,
        "input": request.input,
        "max_output_tokens": LIMIT,
        "metadata": {"application": request.application},
    }


def amounts(answers: list[Json], computed: int) -> Json:
    """Return the numbers of completed jobs, of tokens in their answers, and of tokens that the server computed."""
    needed = sum(answer["usage"]["output_tokens"] for answer in answers if answer["usage"])
    return {
        "requests": len(answers),
        "completed": sum(answer["status"] in ("completed", "incomplete") for answer in answers),
        "statuses": dict(Counter(answer["status"] for answer in answers)),
        "tokens": needed,
        "computed_tokens": computed,
        "computed_twice": round((computed - needed) / needed, 4) if needed else None,
    }


def _strike(server: EngineServer, fault: str) -> tuple[int, float]:
    """Cause the fault and end it; returns the tokens that a killed server had counted, and the seconds without it."""
    began = time.monotonic()
    if fault == "freeze":
        server.freeze()
        threading.Event().wait(FROZEN_S)
        server.thaw()
        return 0, time.monotonic() - began
    computed = generated_tokens(server.url)
    server.kill()
    server.start()
    return computed, time.monotonic() - began


def generated_tokens(url: str) -> int:
    """Return the number of tokens that the server has computed since it started."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=10).text)
    return int(sum(one.value for family in families for one in family.samples if one.name in GENERATED))


def cancels(server: EngineServer) -> Json:
    """Remove single rows from a server that runs ROWS rows; returns the seconds until it counts one row less."""
    prompts, engine = load_prompt_format(str(server.terms.model)), RemoteEngine(connect(server.url))
    drawn = toy_requests(CANCELS * ROWS, 1, median_words=20.0)
    prompt_ids = [tuple(prompts.encode(one.instruction, one.input)) for one in drawn]
    waiting = [DecodingRequest(str(n), ids, ENDLESS_LIMIT) for n, ids in enumerate(prompt_ids)]
    seconds: list[float] = []
    with httpx.Client(base_url=server.url) as client:

        def await_running(count: int) -> None:
            while load_from_metrics(client.get("/metrics").text).running != count:
                engine.step()

        try:
            while len(seconds) < CANCELS:
                for row, tokens in engine.rows.items():
                    if tokens > OLD_TOKENS:  # no row may end by itself while another is timed
                        engine.remove(row)
                joining = [waiting.pop() for _ in range(ROWS - len(engine.rows))]
                engine.insert(joining)
                await_running(ROWS)
                while not engine.rows[joining[-1].id]:
                    engine.step()
                began = time.monotonic()
                engine.remove(joining[-1].id)
                await_running(ROWS - 1)
                seconds.append(time.monotonic() - began)
        finally:
            engine.close()
    return {"cancels": CANCELS, **{f"p{p}_s": round(percentile(seconds, p / 100) or 0.0, 3) for p in (50, 95, 100)}}


if __name__ == "__main__":
    main()
