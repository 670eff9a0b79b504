"""`magnus demo`: sends a mixed workload with Poisson arrivals, shows its progress and prints the figures."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from cli.api_client import Client, Json
from cli.checks.startup_checks import with_engines
from cli.demo.demo_comparison import compare_real, compare_toy, print_comparison
from cli.demo.demo_run import run_workload
from cli.demo.demo_service import DemoService, own_service
from cli.demo.demo_workload import (
    TRAINING_EXAMPLES,
    DemoArrival,
    poisson_arrivals,
    real_arrivals,
    real_requests,
    training_examples,
)
from cli.demo.run_report import WHOLE, WHOLE_OR_CUT_OFF, print_report
from cli.hosting.service_access import POLICIES, VARIANTS, service_options, settings_with
from cli.hosting.service_files import api_address, running_service
from cli.hosting.state_lock import emptied
from cli.hosting.supervisor import stop_signals
from cli.option_types import CommaSeparated
from cli.output import CommandFailed, make_console
from inference.remote.server_errors import ServerUnusable

RATE = 240.0  # requests a second: keeps two CPU workers busy with 8.7 rows each (measured; 2.2 at half the rate)
REQUESTS = 240  # two CPU workers answer them in a few seconds
# Requests a second. A real model on two cores answers about two; at 4 a queue builds up, and its order shows.
REAL_RATE = 4.0
REAL_KV_BUDGET = "256MiB"  # about 11,000 tokens of smollm2 in bfloat16, fifty rows of the demo's length
COMPARED = CommaSeparated(click.Choice([*POLICIES, *VARIANTS]))


class Interrupted(Exception):
    """The demo received Ctrl-C, SIGTERM or SIGHUP."""


@click.command()
@click.option("--model", help="Serve a real model: the name of a fetched one (smollm2) or a directory.")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="URL",
    help="Serve with this inference server, such as vLLM; repeatable.",
)
@click.option("--requests", type=click.IntRange(1), help="Requests to send; by default 240, or all 218 real ones.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Requests a second; by default 240, or 4 to a real model."
)
@click.option("--policy", type=click.Choice(POLICIES), help="Policy of the service that the demo starts.")
@click.option("--compare", "compared", type=COMPARED, help="Run under each of these policies: vs,magnus,fusion.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the requests and their arrival times.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures to FILE.")
@service_options
def demo(
    model: str | None,
    engines: tuple[str, ...],
    requests: int | None,
    rate: float | None,
    policy: str | None,
    compared: list[str] | None,
    seed: int,
    json_file: Path | None,
    url: str | None,
    api_key: str | None,
    state_dir: Path | None,
) -> None:
    """Send requests of six toy applications and show how they were served; exit status 0 if all were completed.

    With --model smollm2 or --engine the requests are real instructions of nine applications, and each answer is shown
    as it comes, with its predicted and its actual length. Run `magnus model fetch smollm2` first.

    With --compare the same requests are served under each policy, by a new service each: 1000 requests, 180 a second. A
    real model first answers half of the instructions, from which every service learns, and then the other half under
    each policy, which takes minutes.

    Without --url the demo starts a whole service and stops it at the end; its logs stay in .magnus/demo. With the
    --state-dir of a running service it uses that one.
    """
    running = running_service(state_dir) if state_dir and not url else None
    settings = settings_with(url=running.url if running else url, api_key=api_key, state_dir=state_dir)
    if settings.url and (policy or engines or compared):
        raise click.UsageError(
            "--policy, --engine and --compare are for services of the demo's own; use `magnus policy set` with --url"
        )
    if policy and compared:
        raise click.UsageError("--compare names the policies; leave --policy out")
    served = _served_model(model, engines)
    real = served is not None
    options = tuple(flag for engine in engines for flag in ("--engine", engine))
    if model is not None:
        options += ("--model", settings_with(model=model).model)
    if real and not engines:
        options += ("--kv-budget", REAL_KV_BUDGET)
    console = make_console()
    # an own service begins empty, because requests of an earlier demo would be answered first
    directory = None if settings.url else state_dir or emptied(settings.state_dir.resolve() / "demo")
    try:
        with interruptible():
            if compared and directory is not None:
                if served:
                    figures = compare_real(
                        console, compared, directory, options, served, requests, rate or REAL_RATE, seed
                    )
                else:
                    figures = compare_toy(console, compared, directory, requests, rate, seed)
            else:
                arrivals = _arrivals(real, requests, rate, seed)
                if directory is None:
                    service: AbstractContextManager[tuple[str, str]] = nullcontext(api_address(settings))
                else:  # the answers of a real model are not known in advance
                    examples = () if real else tuple(training_examples(TRAINING_EXAMPLES, arrivals, seed))
                    service = own_service(console, directory, policy, DemoService(options, examples))
                with service as address, Client(*address) as client:
                    answered = WHOLE_OR_CUT_OFF if real else WHOLE
                    figures = run_workload(console, client, arrivals, answered, show_answers=real)
    except Interrupted:
        console.print("interrupted; everything that the demo started is stopped")
        sys.exit(130)
    if compared:
        print_comparison(console, figures)
    else:
        print_report(console, figures)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")
    _end(console, figures, real or bool(compared))


def _served_model(model: str | None, engines: tuple[str, ...]) -> str | None:
    """Return the real model's directory, or the tokenizer of the servers' model, or None for the bundled model."""
    if model is None and not engines:
        return None
    try:
        return with_engines(settings_with(model=model, engine_urls=",".join(engines) or None)).model
    except ServerUnusable as error:
        raise CommandFailed(str(error)) from error


def _arrivals(real: bool, requests: int | None, rate: float | None, seed: int) -> list[DemoArrival]:
    if real:
        return real_arrivals(requests or len(real_requests()), rate or REAL_RATE, seed)
    return poisson_arrivals(requests or REQUESTS, rate or RATE, seed)


def _end(console: Console, figures: Json, last: bool) -> None:
    """Raise CommandFailed if a request was not completed; name the next demo to try unless this was the `last`."""
    for run in figures.get("policies", {"": figures}).values():
        if run["failed"]:
            under = f" under {run['policy']}" if "policies" in figures else ""
            raise CommandFailed(f"{run['failed']} of {run['requests']} requests were not completed{under}")
    if not last:
        console.print("next: `magnus demo --compare vs,magnus,fusion` shows what the policies make of it")
        console.print("      `magnus model fetch smollm2`, then `magnus demo --model smollm2`: a real language model")


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C, SIGTERM and SIGHUP raise Interrupted once; later ones are ignored, so that cleanup completes."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in previous:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted

    previous: dict[signal.Signals, Any] = {}
    for number in stop_signals():
        previous[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
