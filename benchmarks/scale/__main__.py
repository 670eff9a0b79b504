"""The control plane with 8 to 256 workers: the whole service on this machine, with engines that keep a published pace.

    python -m benchmarks.scale --json F
    python -m benchmarks.scale --workers 8,64 --rate 60 --seconds 30
    python -m benchmarks.scale --workers 8 --rate 40 --finished 0,10000000

The load grows with the fleet: it is a share of what this number of machines serves with full batches. With --rate it is
the same for all fleets, which separates the cost of a worker from the cost of a request. With --finished the database
holds ended requests before the first one arrives. CPU is given for each kind of process.
"""

import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Event
from time import monotonic, process_time

import click
import psutil

from benchmarks.harness import Column, Json, Results, json_option, print_table, say
from benchmarks.inputs.filled_database import fill_service
from benchmarks.inputs.request_sources import arrivals_of
from benchmarks.live.fresh_service import ServiceOptions, add_process, fresh_service, roomy_postgres
from benchmarks.live.live_figures import ServiceMonitor
from benchmarks.scale.run_figures import idle_since, served_since
from benchmarks.service_start import client_of_service, connection_to, process_ids
from cli.demo.demo_workload import DemoArrival, send_all
from cli.hosting.service_access import POLICIES
from cli.hosting.service_files import RunningService
from cli.option_types import CommaSeparated
from inference.prompts.prompt_format import load_prompt_format
from settings import BUNDLED_MODEL

POLL_S = 0.5  # seconds between two samples; a shorter interval would take CPU from the service; not tuned
SETTLE_S = 3.0  # seconds between start and first request, so that the workers' first heartbeats are over; not tuned
GIVE_UP_S = 180.0  # seconds after the last submission; requests that are unanswered by then are only counted
# Toy requests of 30 words that one machine serves in a second, so that --load means about the same for each machine.
# A V100 at 25 rows: 43.6 + 20 + 5 ms an iteration and 36 tokens a request give 25 / (36 · 0.069) = 10.1.
SERVED_BY_ONE = {"v100": 10.0, "a100": 32.0}
MIB = 2**20
COLUMNS: dict[str, Column] = {  # the CPU of processes is in milliseconds a request
    "workers": "workers",
    "ended before": "finished:,",
    "offered/s": "rate:.0f",
    "served/s": "served_per_s:.0f",
    "mean s": "response_s.mean:.2f",
    "P50 s": "response_s.p50:.2f",
    "P99 s": "response_s.p99:.2f",
    **{
        name: f"cpu_ms_a_request.{name}:.2f"
        for name in ("web", "planner", "predictor", "chores", "postgres", "valkey", "paced-workers")
    },
    "all": lambda run: f"{sum(run['cpu_ms_a_request'].values()):.2f}",
    "cores": "cores:.2f",
    "planner's core": "planner_core:.0%",
    "decision ms": "decision_ms:.1f",
    "idle": "idle_while_waiting:.1%",
    "MiB a worker": "worker_mib:.0f",
}


@click.command(help=__doc__)
@click.option("--workers", type=CommaSeparated(int), default="8,16,32,64", show_default=True, help="Fleets.")
@click.option("--machine", type=click.Choice(sorted(SERVED_BY_ONE)), default="v100", show_default=True)
@click.option("--policy", type=click.Choice(POLICIES), default="fusion", show_default=True)
@click.option("--load", default=0.8, show_default=True, help="Arrivals, as a share of what the fleet can serve.")
@click.option("--most-rate", default=600.0, show_default=True, help="Arrivals a second at most.")
@click.option("--rate", type=float, help="Arrivals a second of every fleet, in place of --load.")
@click.option("--seconds", default=30.0, show_default=True, help="How long requests arrive, for each size.")
@click.option("--finished", type=CommaSeparated(int), default="0", show_default=True, help="Ended requests.")
@json_option
def main(
    workers: list[int],
    machine: str,
    policy: str,
    load: float,
    most_rate: float,
    rate: float | None,
    seconds: float,
    finished: list[int],
    results: Results,
) -> None:
    """Measure fleets of these sizes, one after the other, each with a service of its own."""
    runs: list[Json] = []
    for size, ended in product(workers, finished):
        offered = rate or min(most_rate, load * SERVED_BY_ONE[machine] * size)
        arrivals = arrivals_of("toy", round(offered * seconds), offered, 0)
        say(f"{size} workers: starting; {len(arrivals)} requests at {offered:.0f}/s come")
        run = run_fleet(policy, machine, size, arrivals, ended)
        terms = {"workers": size, "machine": machine, "policy": policy, "rate": round(offered, 1), "finished": ended}
        runs.append({**terms, **run})
        say(json.dumps(runs[-1]))
        results.write(runs)
    print_table(runs, COLUMNS)


def run_fleet(policy: str, machine: str, size: int, arrivals: list[DemoArrival], finished: int) -> Json:
    """Measure a new service with `size` workers on a database with `finished` ended requests."""
    with roomy_postgres(size) as (url, postgres_pid):
        if finished:
            filling = monotonic()
            fill_service(url, load_prompt_format(str(BUNDLED_MODEL)).name, finished)
            say(f"{finished} ended requests after {monotonic() - filling:.0f} s")
        began, options = monotonic(), ServiceOptions(size, "40MiB", paced=machine, database_url=url)
        with fresh_service(policy, options) as (service, state_dir):
            add_process(state_dir, "postgres", postgres_pid)
            start_s = monotonic() - began
            say(f"{size} workers: started in {start_s:.0f} s")
            Event().wait(SETTLE_S)
            began_with = process_ids(state_dir)
            fleet = psutil.Process(began_with["paced-workers"]).children()
            run = measure(service, state_dir, arrivals, size)
            own_mib = statistics.mean(worker.memory_full_info().uss for worker in fleet) / MIB
            for worker in fleet:  # killed, because stopping 64 workers in the regular way took 27 s
                worker.kill()
            ended = {name for name, pid in process_ids(state_dir).items() if began_with[name] != pid}
            for name in ended:  # restarted programs: the CPU time of the first process is lost
                run["cpu_ms_a_request"].pop(name)
            return {"start_s": round(start_s, 1), "worker_mib": round(own_mib, 1), "ended": sorted(ended), **run}


def measure(service: RunningService, state_dir: Path, arrivals: list[DemoArrival], workers: int) -> Json:
    """Send the requests, wait for all answers, and gather the figures."""
    stopping, pause = Event(), Event()
    with (
        client_of_service(state_dir) as client,
        ServiceMonitor(service, state_dir) as monitor,
        ThreadPoolExecutor(1) as sender,
    ):
        since, sender_began = client.stats()["now"], process_time()
        sending = sender.submit(send_all, client, arrivals, stopping, lambda *_: None)
        while not sending.done():
            pause.wait(POLL_S)
            monitor.sample()
        refused = sum(submission.exception() is not None for submission in sending.result())
        sender_s, sent_at = process_time() - sender_began, monotonic()
        say(f"{workers} workers: all sent, {refused} refused; {monitor.open_requests()} are open")
        while (left := monitor.open_requests()) and monotonic() < sent_at + GIVE_UP_S:
            monitor.sample()
            pause.wait(POLL_S)
        monitor.stop_clock()
        figures = monitor.figures(since)
        planner_share = monitor.cpu_ms_a_second()["planner"] / 1000
    with connection_to(service.database_url) as connection:
        served, idle = served_since(connection, since), idle_since(connection, since, workers)
    return {
        **served,
        **idle,
        "refused": refused,
        "unanswered": left,
        "cpu_ms_a_request": figures["cpu_ms_a_request"],
        "sender_ms_a_request": round(1000 * sender_s / served["requests"], 3),
        "decision_ms": figures["decision_ms"],
        "planner_core": round(planner_share, 3),
        "cores": round(sum(figures["cpu_share"].values()) * (os.cpu_count() or 1), 3),
    }


if __name__ == "__main__":
    main()
