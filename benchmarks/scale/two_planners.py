"""What a planner for each model gains where the planner is the bound: one installation, and two of half its size.

    python -m benchmarks.scale.two_planners --json F

On a small machine everything else ends before a planner does. So each planner gets a small part of a core: it is
stopped (SIGSTOP) for the rest of each tenth of a second. Both fleets get the same arrivals, more than they can plan.
"""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import click
import psutil

from benchmarks.harness import Column, Json, Results, json_option, print_table, say
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.request_sources import arrivals_of
from benchmarks.scale.__main__ import SETTLE_S, measure
from benchmarks.service_start import process_ids

PERIOD_S = 0.1  # in which a planner runs for its part; any value does that is well below the lead's time
COUNTS = (1, 2)

COLUMNS: dict[str, Column] = {
    "installations": "installations",
    "planner's core": "planner_core:.1%",
    "served/s": "served_per_s:.1f",
    "mean s": lambda row: ", ".join(f"{run['response_s']['mean']:.1f}" for run in row["runs"]),
}


@click.command(help=__doc__)
@click.option("--workers", default=16, show_default=True, help="Paced workers of all installations together.")
@click.option("--planner-core", default=0.02, show_default=True, help="Part of a core that each planner gets.")
@click.option("--rate", default=60.0, show_default=True, help="Arrivals a second, all installations together.")
@click.option("--seconds", default=30.0, show_default=True, help="How long requests arrive.")
@click.option("--repeats", default=1, show_default=True, help="Of both, in turns.")
@click.option("--seed", default=0, show_default=True)
@json_option
def main(
    workers: int, planner_core: float, rate: float, seconds: float, repeats: int, seed: int, results: Results
) -> None:
    """Measure one installation, then two."""
    rows: list[Json] = []
    for repeat in range(repeats):
        for count in COUNTS:
            runs = run_installations(count, workers // count, planner_core, rate / count, seconds, seed + repeat)
            served = round(sum(run["served_per_s"] for run in runs), 2)
            rows.append({"installations": count, "planner_core": planner_core, "served_per_s": served, "runs": runs})
            say(f"{count} installations: {served} requests/s")
            results.write(rows)
    print_table(rows, COLUMNS)


def run_installations(
    count: int, workers: int, planner_core: float, rate: float, seconds: float, seed: int
) -> list[Json]:
    """The figures of so many services at once, each with so many workers and arrivals of its own."""
    options = ServiceOptions(workers, "40MiB", paced="v100")
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        measured = []
        for number in range(count):
            arrivals = arrivals_of("toy", round(rate * seconds), rate, seed + number)
            service, state_dir = stack.enter_context(fresh_service("fusion", options, arrivals, seed))
            stack.enter_context(slowed(psutil.Process(process_ids(state_dir)["planner"]), planner_core))
            measured.append((service, state_dir, arrivals, workers))
        threading.Event().wait(SETTLE_S)
        return [run.result() for run in [pool.submit(measure, *terms) for terms in measured]]


@contextmanager
def slowed(process: psutil.Process, share: float) -> Iterator[None]:
    """Let a process run only for this share of the time, until the context ends."""
    ended = threading.Event()

    def stop_and_go() -> None:
        while not ended.wait(share * PERIOD_S):
            process.send_signal(signal.SIGSTOP)
            ended.wait((1 - share) * PERIOD_S)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
