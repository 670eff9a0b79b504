"""Measures the errors of ETAs and the coverage of their intervals, on the real stack at several loads.

`python -m benchmarks.eta --models bundled --policies fusion,magnus,baton --loads 0.6,0.9,1.3 --json F`

Each policy and model gets one service. It learns from a burst of requests. Its saturation is what the worker answers a
second from a queue that was stored before, while nothing arrives: counted in tokens, because some policies answer the
short requests first. Then each load follows, as a share of that saturation: constant, or in the shape of `stop` (1.3,
then nothing), `step` (0.6, then 1.6) or `bursts` (0.4, and 2.1 for a third of the time). Each row says how many
requests a second were offered and answered, and by how many a second the queue grew. An ETA is judged as the API shows
it: at submission, when service begins, and halfway between arrival and answer. An error is the difference between the
expected and the real instant of the answer, as a share of the time that was left. The table also has the errors of the
predicted lengths, on which every ETA depends. At submission, the median error in seconds stands beside those of three
rivals: the last hour's median response time, Little's law, and QLM's estimator; the interval's width and coverage
stand beside those of the last hour's response times and of QLM. *Found* is the share of answers that a client finds
that comes back once, when `Retry-After` says; *polls*, how often it asks until it finds the answer, and *found after*,
how long the answer lay there by then. With `--promises N` every Nth request is quoted first and takes one of the
offered promises in turn; a row for each probability says how many were sold and kept.

The planner's snapshots are kept during the run and evaluated afterwards, so that the benchmark takes almost no CPU from
the service.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks.eta.bought_promises import Buyer, kept_promises
from benchmarks.eta.judged_etas import JudgedJob, Snapshots, judge
from benchmarks.eta.rivals import History
from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.inputs.request_sources import Workload, arrivals_of
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.live.live_workload import toy_workload
from benchmarks.scale.paced_engine import MACHINES
from benchmarks.service_start import client_of_service, connection_to, submitted
from cli.demo.demo_workload import TRAINING_EXAMPLES, DemoArrival, training_examples
from cli.hosting.service_access import POLICIES, settings_with
from cli.hosting.service_files import RunningService
from cli.option_types import CommaSeparated
from inference.prompts.prompt_format import load_prompt_format
from models.client_requests import RequestView, select_views
from models.operations.operator_overview import set_paused
from models.planning.queue_snapshot import read_queue_snapshot
from models.request_life import UNFINISHED
from models.tables import RequestStatus, StoredRequest

POLICY_LIST = CommaSeparated(click.Choice(POLICIES))
COLUMNS = {
    "policy": "policy",
    "model": "model",
    "load": "load",
    "moment": "moment",
    "judged": "judged",
    **{name.replace("_", " "): f"{name}:.1%" for name in ("median_error", "coverage", "before_low", "before_eta")},
    **{name.replace("_", " "): f"{name}:.1%" for name in ("length_error", "planner_share", "found")},
    "polls": "polls:.2f",
    **{"sold": "sold", "kept": "kept_share:.1%", "promised, s": "promised_s:.1f"},
    "found after, s": "found_after_s:.1f",
    "offered": "offered:.1f",
    "served": "served:.1f",
    "queue grew": "queue_grew:+.1f",
    "error, s": "error_s:.1f",
    "last hour's, s": "last_hour_error_s:.1f",
    "Little's, s": "little_error_s:.1f",
    "QLM's, s": "qlm_error_s:.1f",
    "width, s": "width_s:.1f",
    "last hour's width, s": "last_hour_width_s:.1f",
    "covers": "last_hour_coverage:.1%",
    "QLM's width, s": "qlm_width_s:.1f",
    "QLM covers": "qlm_coverage:.1%",
}
BUNDLED = "bundled"
LOOK_EVERY_S = 0.25  # snapshots are looked for this often; the planner writes one twice a second
# After these seconds a predictor fitted to the answers so far is in service: the trainer checks every 5 s.
SETTLE_S = 10.0
# Stretches of arrivals by shape: (share of saturation, share of the seconds).
SHAPES: dict[str, list[tuple[float, float]]] = {
    "stop": [(1.3, 0.5), (0.0, 0.5)],
    "step": [(0.6, 0.5), (1.6, 0.5)],
    "bursts": [(0.4, 0.11), (2.1, 0.06)] * 6,
}
ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)
OPEN = select(StoredRequest.id).where(StoredRequest.status.in_(UNFINISHED)).limit(1)


@click.command(help=__doc__)
@click.option("--policies", type=POLICY_LIST, default="fusion,magnus,baton", show_default=True)
@click.option("--models", type=CommaSeparated(), default=BUNDLED, show_default=True, help="bundled, or fetched ones.")
@click.option("--loads", type=CommaSeparated(), default="0.6,0.9,1.3", show_default=True, help="Shares, or shapes.")
@click.option("--seconds", default=60.0, show_default=True, help="Of arrivals at each load.")
@click.option("--warm-seconds", default=20.0, show_default=True, help="Of arrivals at each load before they count.")
@click.option("--burst", default=200, show_default=True, help="Requests at once that teach the service.")
@click.option("--stored", default=1000, show_default=True, help="Requests of the queue that tells the saturation.")
@click.option("--saturation", type=float, help="Answers a second, to compare at the same rates; measured if unset.")
@click.option("--kv-budget", default="40MiB", show_default=True, help="Of each worker.")
@click.option(
    "--paced", type=click.Choice(sorted(MACHINES)), help="One worker at a published pace, which takes no CPU."
)
@click.option("--max-prompt-tokens", type=click.IntRange(1), help="Lmax of the service; its default if unset.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Gmax of the service; its default if unset.")
@click.option("--promises", default=0, show_default=True, help="Buy a promise for every nth request; 0: for none.")
@json_option
def main(
    policies: list[str],
    models: list[str],
    loads: list[str],
    seconds: float,
    warm_seconds: float,
    burst: int,
    stored: int,
    saturation: float | None,
    kv_budget: str,
    paced: str | None,
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
    promises: int,
    results: Results,
) -> None:
    """Measure the errors and the coverage of ETAs for each policy, model and load."""
    rows: list[Json] = []
    for model, policy in product(models, policies):
        directory = None if model == BUNDLED else settings_with(model=model).model
        options = ServiceOptions(1, kv_budget, directory, max_prompt_tokens, max_output_tokens, paced=paced)
        workload: Workload = "toy" if model == BUNDLED else "instructions"
        at_once = [replace(one, at_s=0.0) for one in arrivals_of(workload, burst, 1.0, 0)]
        examples = training_examples(TRAINING_EXAMPLES, at_once, 0) if model == BUNDLED else ()
        with fresh_service(policy, options, examples, true_tokens() if paced else {}) as (service, state_dir):
            _serve(service, state_dir, at_once)
            full = _serve_stored(service, state_dir, arrivals_of(workload, stored, stored, 2))
            threading.Event().wait(SETTLE_S)
            for load in loads:
                shape = SHAPES.get(load) or [(float(load), 1.0)]
                stretches = [(share * (saturation or full.requests_per_s), of_all) for share, of_all in shape]
                arrivals = shaped(workload, stretches, warm_seconds + seconds)
                judged = _serve(service, state_dir, arrivals, warm_seconds, full.tokens_per_s, promises)
                shared = {"policy": policy, "model": model, "load": load, "saturation": round(full.requests_per_s, 3)}
                rows += [shared | row for row in judged]
                results.write(rows)  # after each load, so that an interrupted comparison keeps its rows
    print_table(rows, COLUMNS, "ETAs")


SEEDS = range(3)  # of the burst, of the arrivals, and of the stored requests
MOST_SENT = 8000  # a paced worker knows the answers to this many requests of each seed; more than a minute's arrivals


def true_tokens() -> Mapping[tuple[str, str], int]:
    """Return the lengths of the answers to all toy requests that a run sends, by instruction and input."""
    toys = toy_workload("toy", load_prompt_format(settings_with().model))
    return toys.true_tokens(one for seed in SEEDS for one in arrivals_of("toy", MOST_SENT, 1.0, seed))


class Saturation(NamedTuple):
    """What the worker answers a second from a queue that was stored before."""

    requests_per_s: float
    tokens_per_s: float


def shaped(workload: Workload, stretches: Sequence[tuple[float, float]], seconds: float) -> list[DemoArrival]:
    """Draw Poisson arrivals for these stretches, given as (arrivals a second, share of the seconds)."""
    expected = np.cumsum([0.0, *(rate * share * seconds for rate, share in stretches)])
    instants = np.cumsum([0.0, *(share * seconds for _, share in stretches)])
    drawn = arrivals_of(workload, max(1, round(float(expected[-1]))), 1.0, 1)
    at = np.interp([one.at_s for one in drawn], expected, instants).tolist()
    return [replace(one, at_s=at_s) for one, at_s in zip(drawn, at, strict=True)]


def _serve_stored(service: RunningService, state_dir: Path, arrivals: list[DemoArrival]) -> Saturation:
    """Store the requests while planning is paused; return at which rate they are then answered."""
    with connection_to(service.database_url) as connection, Session(connection) as session:
        set_paused(session, True)
    with client_of_service(state_dir) as client:
        since = datetime.fromtimestamp(client.stats()["now"], UTC)
        submitted(client, arrivals)
        began = client.stats()["now"]
    with connection_to(service.database_url) as connection, Session(connection) as session:
        set_paused(session, False)
        while session.scalar(OPEN):
            session.rollback()
            threading.Event().wait(LOOK_EVERY_S)
        return rate_from_stored(_answered(session, since), began)


def rate_from_stored(jobs: Sequence[JudgedJob], began: float) -> Saturation:
    """Return the rate from `began` until the last of the jobs was started, counted by the generated tokens.

    Of the jobs that still ran then, half of the tokens count.
    """
    until = max(job.started_at or began for job in jobs)
    tokens = [(job.served.tokens, job.finished_at <= until) for job in jobs]
    done = sum(count * (1.0 if ended else 0.5) for count, ended in tokens)
    share = done / sum(count for count, _ in tokens)
    return Saturation(len(jobs) * share / (until - began), done / (until - began))


def _answered(session: Session, since: datetime) -> list[JudgedJob]:
    ended = select_views().where(StoredRequest.status.in_(ANSWERED), StoredRequest.arrived_at >= since)
    jobs = [JudgedJob.from_view(RequestView(*row)) for row in session.execute(ended)]
    session.expunge_all()
    return jobs


def _serve(
    service: RunningService,
    state_dir: Path,
    arrivals: list[DemoArrival],
    warm_s: float = 0.0,
    full_tokens_per_s: float | None = None,
    promises: int = 0,
) -> list[Json]:
    """Send the arrivals; returns all moments' rows of the jobs that arrived after `warm_s`."""
    snapshots, pause = Snapshots(), threading.Event()
    with (
        connection_to(service.database_url) as connection,
        client_of_service(state_dir) as client,
        Session(connection) as session,
    ):
        since, began = datetime.fromtimestamp(client.stats()["now"], UTC), time.monotonic()
        before_s = _forecasting_s(session)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(submitted, client, arrivals, Buyer(client, promises).create)
            while not sending.done() or session.scalar(OPEN):
                snapshots.keep(session)
                pause.wait(LOOK_EVERY_S)
            sending.result()
        spent_s, took_s = _forecasting_s(session) - before_s, time.monotonic() - began
        jobs = _answered(session, since)
        kept = kept_promises(session, since.timestamp() + warm_s)
    first, last = (extreme(job.arrived_at for job in jobs) for extreme in (min, max))
    shared: Json = {"planner_share": round(spent_s / took_s, 4)}
    if last > first + warm_s:
        shared |= flow(jobs, first + warm_s, last)
    history = History((job.served for job in jobs), full_tokens_per_s)
    judged = judge([job for job in jobs if job.arrived_at >= first + warm_s], snapshots, history)
    return [row | shared for row in [*judged, *kept]]


def flow(jobs: Sequence[JudgedJob], since: float, until: float) -> Json:
    """Return the requests that came and were answered a second in this time, and by how many a second more waited."""
    came, ended = (
        sum(since < at <= until for at in instants) / (until - since)
        for instants in ((job.arrived_at for job in jobs), (job.finished_at for job in jobs))
    )
    return {"offered": round(came, 2), "served": round(ended, 2), "queue_grew": round(came - ended, 2)}


def _forecasting_s(session: Session) -> float:
    """Return the seconds that the planner in service has spent on forecasts so far."""
    snapshot = read_queue_snapshot(session)
    session.rollback()
    return 0.0 if snapshot is None else snapshot.forecasts.spent_s


if __name__ == "__main__":
    main()
