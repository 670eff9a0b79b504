"""The control plane with 8 to 256 workers: the whole service on this machine, engines that keep a published pace.

    python -m benchmarks.scale --json F
    python -m benchmarks.scale --workers 8,64 --load 0.8 --seconds 30

The load grows with the fleet: a share of what so many machines can serve at full batches, which one simulation
measures. CPU is by kind of process, so that what one more worker costs is told from what one more request costs.
Prints one table.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from time import process_time

import click
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.live.live_arrivals import arrivals_of
from benchmarks.live.live_figures import ServiceMonitor
from benchmarks.scale.paced_machines import MACHINES
from cli.api_client import Client, Json
from cli.demo_workload import DemoArrival, send_all
from cli.hosting.service_files import RunningService, api_address
from cli.options import POLICIES
from models.session import make_engine
from settings import read_settings

POLL_S = 0.5  # between two looks; shorter takes CPU from the service. Not tuned
# Requests a second that one machine serves with toy requests of 30 words, so that --load means about the same for each.
# A V100 at 25 rows: 43.6 + 20 + 5 ms an iteration and 36 tokens a request give 25 / (36 · 0.069) = 10.1.
SERVED_BY_ONE = {"v100": 10.0, "a100": 32.0}

SERVED = text("""
    with served as (
        select extract(epoch from arrived_at)::float8 as arrived, extract(epoch from finished_at)::float8 as finished
        from requests where arrived_at >= to_timestamp(:since) and status = 'completed'
    )
    select count(*) as requests, count(*) / (max(finished) - min(arrived)) as requests_per_s,
        avg(finished - arrived) as mean, percentile_cont(array[0.5, 0.99]) within group (order by finished - arrived)
            as percentiles
    from served
""")

# Seconds in which a worker ran nothing although some request waited all the while, over workers and the run's seconds.
IDLE = text("""
    with run as (
        select to_timestamp(:since) as began, max(finished_at) as ended from requests
        where arrived_at >= to_timestamp(:since)
    ), busy as (
        select worker, unnest(range_agg(tstzrange(started_at, finished_at))) as span
        from batches where started_at >= to_timestamp(:since) and finished_at > started_at group by worker
    ), waits as (
        select unnest(range_agg(tstzrange(arrived_at + interval '0.25 s', started_at))) as span from requests
        where arrived_at >= to_timestamp(:since) and started_at > arrived_at + interval '0.25 s'
    ), waited as (
        select coalesce(sum(extract(epoch from upper(span) - lower(span))), 0)::float8 as seconds from waits
    ), both as (
        select coalesce(sum(extract(epoch from upper(b.span * w.span) - lower(b.span * w.span))), 0)::float8 as seconds
        from busy b join waits w on b.span && w.span
    )
    select waited.seconds as waited_s, both.seconds as busy_s from waited, both
""")


@click.command()
@click.option("--workers", default="8,16,32,64", show_default=True, help="Sizes of the fleet, comma-separated.")
@click.option("--machine", type=click.Choice(sorted(MACHINES)), default="v100", show_default=True)
@click.option("--policy", type=click.Choice(POLICIES), default="fusion", show_default=True)
@click.option("--load", default=0.8, show_default=True, help="Arrivals, as a share of what the fleet can serve.")
@click.option("--seconds", default=30.0, show_default=True, help="How long requests arrive, for each size.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the rows there.")
def main(
    workers: str, machine: str, policy: str, load: float, seconds: float, seed: int, json_file: Path | None
) -> None:
    """Measure fleets of these sizes, one after the other, each with a service of its own."""
    runs: list[Json] = []
    for size in map(int, workers.split(",")):
        rate = load * SERVED_BY_ONE[machine] * size
        arrivals = arrivals_of("toy", round(rate * seconds), rate, seed)
        options = ServiceOptions(size, "40MiB", paced=machine)
        with fresh_service(policy, options, arrivals, seed) as (service, state_dir):
            run = measure(service, state_dir, arrivals, size)
        runs.append({"workers": size, "machine": machine, "policy": policy, "rate": rate, **run})
        Console(stderr=True).print(runs[-1])
        if json_file:
            json_file.write_text(json.dumps(runs, indent=1) + "\n")
    Console().print(table(runs))


def measure(service: RunningService, state_dir: Path, arrivals: list[DemoArrival], workers: int) -> Json:
    """Send the requests, wait for all answers, and gather the figures."""
    url, key = api_address(read_settings(state_dir=state_dir))
    pause = Event()
    with Client(url, key) as client, ServiceMonitor(service, state_dir) as monitor:
        since, sender_began = client.stats()["now"], process_time()
        submissions = send_all(client, arrivals, pause, lambda *_: None)
        for submission in submissions:
            submission.result()
        sender_s = process_time() - sender_began
        while monitor.open_requests():
            monitor.sample()
            pause.wait(POLL_S)
        monitor.stop_clock()
        figures = monitor.figures(since)
    database = make_engine(service.database_url, pool_size=1, name="benchmark")
    with database.connect() as connection:
        served = connection.execute(SERVED, {"since": since}).one()
        idle = connection.execute(IDLE, {"since": since}).one()
    cpu = figures["cpu_ms_a_request"]
    waited_s = workers * idle.waited_s
    return {
        "requests": served.requests,
        "requests_per_s": round(served.requests_per_s, 2),
        "response_s": {
            "mean": round(float(served.mean), 3),
            "p50": round(served.percentiles[0], 3),
            "p99": round(served.percentiles[1], 3),
        },
        "cpu_ms_a_request": cpu,
        "sender_ms_a_request": round(1000 * sender_s / served.requests, 3),
        "decision_ms": figures["decision_ms"],
        "idle_while_waiting": round(1 - idle.busy_s / waited_s, 4) if waited_s else None,
        "cores": round(sum(figures["cpu_share"].values()) * (os.cpu_count() or 1), 3),
    }


def table(runs: Sequence[Json]) -> Table:
    """A row for each size of the fleet; CPU in milliseconds a request."""
    kinds = ("web", "planner", "predictor", "postgres", "valkey", "paced-workers")
    shown = Table("workers", "offered/s", "served/s", "mean s", "P99 s", *kinds, "all", "cores", "decision ms", "idle")
    for run in runs:
        cpu, response = run["cpu_ms_a_request"], run["response_s"]
        shown.add_row(
            str(run["workers"]),
            f"{run['rate']:.0f}",
            f"{run['requests_per_s']:.0f}",
            f"{response['mean']:.2f}",
            f"{response['p99']:.2f}",
            *(f"{cpu.get(kind, 0.0):.2f}" for kind in kinds),
            f"{sum(cpu.values()):.2f}",
            f"{run['cores']:.2f}",
            "–" if run["decision_ms"] is None else f"{run['decision_ms']:.1f}",
            "–" if run["idle_while_waiting"] is None else f"{run['idle_while_waiting']:.1%}",
        )
    return shown


if __name__ == "__main__":
    main()
