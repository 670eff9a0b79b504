"""`magnus demo`: sends a mixed workload with Poisson arrivals, shows its progress and prints the figures."""

import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from cli.api_client import Client, Json
from cli.demo_workload import (
    DemoArrival,
    DemoRequest,
    poisson_arrivals,
    real_arrivals,
    real_requests,
    send_all,
    training_examples,
)
from cli.hosting.child_process import ChildProgram, ProgramFailed, running
from cli.hosting.process_commands import BIN
from cli.hosting.readiness import await_ready
from cli.hosting.service_files import api_address, keep_private, running_service
from cli.hosting.supervisor import AlreadyRunning, clear_state_dir, stop_signals
from cli.output import CommandFailed, make_console
from cli.run_report import WHOLE, WHOLE_OR_CUT_OFF, RunProgress, print_answer, print_report, summary
from cli.service_access import POLICIES, service_options, settings_with
from settings import Settings

RATE = 240.0  # a second: keeps two CPU workers busy with 8.7 rows each (measured; 2.2 at half the rate)
REQUESTS = 240  # two CPU workers answer them in a few seconds
# A real model on two cores answers about two of these a second. At 4 a queue builds up, and its order shows.
REAL_RATE = 4.0
REAL_KV_BUDGET = "256MiB"  # about 11,000 tokens of smollm2 in bfloat16, fifty rows of the demo's length
TRAINING_EXAMPLES = 1500  # more would teach the predictor more and delay the demo's start; not tuned
# Seconds between updates of the progress bars, each of which costs the service a call; not tuned.
POLL_S = 0.4
ANSWERS_POLL_S = 1.5  # the same if new answers are shown, which takes a list of all answers; not tuned
# Seconds to wait for the last batch to close; with other clients some batch may always be open. Not tuned.
MAX_CLOSING_S = 4.0
OPEN_STATES = ("queued", "in_progress")


class Interrupted(Exception):
    """The demo received Ctrl-C, SIGTERM or SIGHUP."""


@click.command()
@click.option("--model", help="A real model instead: the name of a fetched one (smollm2) or its directory.")
@click.option("--requests", type=click.IntRange(1), help="Requests to send; 240, or all 218 real ones.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="A second; 240, or 4 to a real model.")
@click.option("--policy", type=click.Choice(POLICIES), help="Policy of the service that the demo starts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the requests and of their arrival times.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
@service_options
def demo(
    model: str | None,
    requests: int | None,
    rate: float | None,
    policy: str | None,
    seed: int,
    json_file: Path | None,
    url: str | None,
    api_key: str | None,
    state_dir: Path | None,
) -> None:
    """Send requests of six toy applications and show how they were served; exit status 0 if all were completed.

    With --model smollm2 the requests are real instructions of nine applications, and each answer is shown as it comes,
    with its predicted and its actual length. Run `magnus model fetch smollm2` first.

    Without --url the demo starts a whole service and stops it at the end; its logs stay in .magnus/demo.
    """
    settings = settings_with(url=url, api_key=api_key, state_dir=state_dir)
    real = model is not None
    if model is not None:
        model = settings_with(model=model).model  # resolves the name of a fetched model
        arrivals = real_arrivals(requests or len(real_requests()), rate or REAL_RATE, seed)
    else:
        arrivals = poisson_arrivals(requests or REQUESTS, rate or RATE, seed)
    console = make_console()
    with interruptible():
        if settings.url:
            if policy:
                raise click.UsageError(
                    "--policy is for a service of the demo's own; use `magnus policy set` with --url"
                )
            service: AbstractContextManager[tuple[str, str]] = nullcontext(api_address(settings))
        else:
            service = own_service(console, state_dir or empty_state_dir(settings), policy, arrivals, seed, model)
        try:
            with service as address, Client(*address) as client:
                figures = run_workload(console, client, arrivals, show_answers=real)
        except Interrupted:
            console.print("interrupted; everything that the demo started is stopped")
            sys.exit(130)
    print_report(console, figures)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")
    if figures["failed"]:
        raise CommandFailed(f"{figures['failed']} of {len(arrivals)} requests were not completed")
    if not real:
        console.print("next: `magnus model fetch smollm2`, then `magnus demo --model smollm2`: a real language model")


def empty_state_dir(settings: Settings) -> Path:
    """Return an empty state directory for this demo, because requests of an earlier demo would be answered first."""
    state_dir = settings.state_dir.resolve() / "demo"
    try:
        clear_state_dir(state_dir)
    except AlreadyRunning as error:
        raise CommandFailed(str(error)) from error
    return state_dir


@contextmanager
def own_service(
    console: Console,
    state_dir: Path,
    policy: str | None,
    arrivals: list[DemoArrival],
    seed: int,
    model: str | None = None,
) -> Iterator[tuple[str, str]]:
    """Start a service, pretrain its length predictor, yield its URL and key; stop it at the end.

    With a real model nothing is pretrained, because its answers are not known in advance.
    """
    keep_private(state_dir)
    console.print(
        f"starting Postgres, broker, API, planner, predictor, chores, workers, trainer, Flower in {state_dir} …"
    )
    command = [str(BIN / "magnus"), "up", "--json", "--state-dir", str(state_dir), "--port", "0", "--flower-port", "0"]
    program = ChildProgram(
        "magnus up",
        (
            *command,
            *(("--policy", policy) if policy else ()),
            *(("--model", model, "--kv-budget", REAL_KV_BUDGET) if model else ()),
        ),
        ready=lambda: (service := running_service(state_dir)) is not None and service.pid == process.pid,
        ready_within_s=600.0,
        stop_within_s=60.0,
        orphan_signal=signal.SIGTERM,  # on this signal it stops everything that it started
    )
    log = state_dir / "up.log"
    log.unlink(missing_ok=True)
    try:
        with running(program, log) as process:
            await_ready(program, process, log)
            if model is None:
                console.print(
                    f"teaching the length predictor {TRAINING_EXAMPLES} other requests of these applications …"
                )
                train_predictor(state_dir, arrivals, seed)
            yield api_address(settings_with(state_dir=state_dir))
    except ProgramFailed as error:
        raise CommandFailed(str(error)) from error


def train_predictor(state_dir: Path, arrivals: list[DemoArrival], seed: int) -> None:
    """Run `magnus train` on toy requests that are not among the arrivals; raises ProgramFailed."""
    data, log = state_dir / "examples.jsonl", state_dir / "train.log"
    examples = training_examples(TRAINING_EXAMPLES, arrivals, seed)
    data.write_text("".join(json.dumps(example) + "\n" for example in examples))
    command = (str(BIN / "magnus"), "train", "--state-dir", str(state_dir), "--data", str(data))
    program = ChildProgram("magnus train", command, stop_within_s=0.0)
    with running(program, log) as process:
        if process.wait() != 0:
            raise ProgramFailed(program.name, f"ended with {process.returncode}", log)


def run_workload(console: Console, client: Client, arrivals: list[DemoArrival], *, show_answers: bool = False) -> Json:
    """Send the arrivals, wait until all responses are final, and return the run's figures.

    With `show_answers` each answer is printed as it comes, and one that was cut off at its limit counts as an answer.
    """
    since = client.stats()["now"]
    sent: dict[str, DemoRequest] = {}
    shown: set[str] = set()
    stopping, pause = threading.Event(), threading.Event()
    with RunProgress(console, len(arrivals)) as progress, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all, client, arrivals, stopping, sent.__setitem__)
        try:
            responses = None
            while responses is None:
                responses = final_responses(client, sending, sent.keys(), since)
                progress.show(len(sent), client.stats(since))
                if show_answers:
                    print_new_answers(console, client, sent, shown)
                if responses is None:
                    pause.wait(ANSWERS_POLL_S if show_answers else POLL_S)
        finally:
            stopping.set()
    last = max(response["completed_at"] for response in responses)
    answered = WHOLE_OR_CUT_OFF if show_answers else WHOLE
    return summary(responses, closing_stats(client, since, last), len(arrivals), answered)


def print_new_answers(console: Console, client: Client, sent: Mapping[str, DemoRequest], shown: set[str]) -> None:
    """Print the answers that came since the last call, in the order of their ends, and add their ids to `shown`."""
    ended = [
        response
        for status in sorted(WHOLE_OR_CUT_OFF)
        for response in client.responses(status=status)
        if response["id"] in sent.keys() - shown
    ]
    for response in sorted(ended, key=lambda response: (response["completed_at"], response["id"])):
        shown.add(response["id"])
        print_answer(console, sent[response["id"]].input, response)


def final_responses(
    client: Client, sending: Future[list[Future[None]]], sent: Set[str], since: float
) -> list[Json] | None:
    """Return all responses once all are sent and final, else None; raise what sending raised."""
    if not sending.done():
        return None
    for submission in sending.result():
        submission.result()
    if any(response["id"] in sent for state in OPEN_STATES for response in client.responses(status=state)):
        return None
    newest_first = takewhile(lambda response: response["magnus"]["arrived_at"] >= since, client.responses(order="desc"))
    responses = [response for response in newest_first if response["id"] in sent]
    # a response that returned to the queue between the two calls above was in neither list
    return None if any(response["status"] in OPEN_STATES for response in responses) else responses


def closing_stats(client: Client, since: float, until: float) -> Json:
    """Wait until the last batches are closed, shortly after their answers, and return the service's statistics."""
    pause = threading.Event()
    for _ in range(round(MAX_CLOSING_S / POLL_S)):
        if client.stats(since, until)["open_batches"] == 0:
            break
        pause.wait(POLL_S)
    return client.stats(since, until)


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
