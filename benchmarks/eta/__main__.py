"""Measures the errors of ETAs and the coverage of their intervals, on the real stack at several loads.

`python -m benchmarks.eta --models bundled --policies fusion,magnus,baton --loads 0.6,0.9,1.3 --json F`

Each policy and model gets one service. It learns from a burst of requests; its saturation is measured under more
arrivals than it can serve; then each load follows, as a share of that saturation. An ETA is judged as the API shows it:
at submission, when service begins, and halfway between arrival and answer. An error is the difference between the
expected and the real instant of the answer, as a share of the time that was left. The table also has the errors of the
predicted lengths, on which every ETA depends. At submission, the median error in seconds stands beside those of two
naive rivals, the last hour's median response time and Little's law, and the interval's width beside that of the last
hour's response times. *Found* is the share of answers that a client finds that comes back once, when `Retry-After`
says; *polls*, how often it asks until it finds the answer, and *found after*, how long the answer lay there by then.

The planner's snapshots are kept during the run and evaluated afterwards, so that the benchmark takes almost no CPU from
the service.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import click
from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks.eta.judged_etas import JudgedJob, Snapshots, judge
from benchmarks.eta.rivals import History, Served
from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.inputs.request_sources import Workload, arrivals_of
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.service_start import client_of_service, connection_to
from cli.demo.demo_workload import TRAINING_EXAMPLES, DemoArrival, send_all, training_examples
from cli.hosting.service_access import POLICIES, settings_with
from cli.hosting.service_files import RunningService
from cli.option_types import CommaSeparated
from models.client_requests import RequestView, select_views
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
    "found after, s": "found_after_s:.1f",
    "error, s": "error_s:.1f",
    "last hour's, s": "last_hour_error_s:.1f",
    "Little's, s": "little_error_s:.1f",
    "width, s": "width_s:.1f",
    "last hour's width, s": "last_hour_width_s:.1f",
}
BUNDLED = "bundled"
LOOK_EVERY_S = 0.25  # snapshots are looked for this often; the planner writes one twice a second
# After these seconds a predictor fitted to the answers so far is in service: the trainer checks every 5 s.
SETTLE_S = 10.0
# To find the saturation, arrivals come at this many times the rate at which the burst was answered, more than can be
# served. A larger value would spend more CPU on accepting requests than the judged loads do. Not tuned.
OVERLOAD = 1.2
ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)
OPEN = select(StoredRequest.id).where(StoredRequest.status.in_(UNFINISHED)).limit(1)


@click.command(help=__doc__)
@click.option("--policies", type=POLICY_LIST, default="fusion,magnus,baton", show_default=True)
@click.option("--models", type=CommaSeparated(), default=BUNDLED, show_default=True, help="bundled, or fetched ones.")
@click.option("--loads", type=CommaSeparated(float), default="0.6,0.9,1.3", show_default=True, help="Of saturation.")
@click.option("--seconds", default=60.0, show_default=True, help="Of arrivals at each load.")
@click.option("--warm-seconds", default=20.0, show_default=True, help="Of arrivals at each load before they count.")
@click.option("--burst", default=200, show_default=True, help="Requests at once that teach the service.")
@click.option("--overload-seconds", default=30.0, show_default=True, help="Of arrivals that tell the saturation.")
@click.option("--saturation", type=float, help="Answers a second, to compare at the same rates; measured if unset.")
@click.option("--kv-budget", default="40MiB", show_default=True, help="Of each worker.")
@click.option("--max-prompt-tokens", type=click.IntRange(1), help="Lmax of the service; its default if unset.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Gmax of the service; its default if unset.")
@json_option
def main(
    policies: list[str],
    models: list[str],
    loads: list[float],
    seconds: float,
    warm_seconds: float,
    burst: int,
    overload_seconds: float,
    saturation: float | None,
    kv_budget: str,
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
    results: Results,
) -> None:
    """Measure the errors and the coverage of ETAs for each policy, model and load."""
    rows: list[Json] = []
    for model, policy in product(models, policies):
        directory = None if model == BUNDLED else settings_with(model=model).model
        options = ServiceOptions(1, kv_budget, directory, max_prompt_tokens, max_output_tokens)
        workload: Workload = "toy" if model == BUNDLED else "instructions"
        at_once = [replace(one, at_s=0.0) for one in arrivals_of(workload, burst, 1.0, 0)]
        examples = training_examples(TRAINING_EXAMPLES, at_once, 0) if model == BUNDLED else ()
        with fresh_service(policy, options, examples) as (service, state_dir):
            quickest, _ = _serve(service, state_dir, at_once)
            rate = OVERLOAD * (saturation or quickest)
            crowd = arrivals_of(workload, max(1, round(rate * overload_seconds)), rate, 2)
            most, _ = _serve(service, state_dir, crowd)
            threading.Event().wait(SETTLE_S)
            for load in loads:
                rate = load * (saturation or most)
                arrivals = arrivals_of(workload, max(1, round(rate * (warm_seconds + seconds))), rate, 1)
                reached, judged = _serve(service, state_dir, arrivals, warm_seconds)
                shared = {"policy": policy, "model": model, "load": load, "rate": round(rate, 3)}
                rows += [shared | {"requests_per_s": round(reached, 3)} | row for row in judged]
                results.write(rows)  # after each load, so that an interrupted comparison keeps its rows
    print_table(rows, COLUMNS, "ETAs")


def _serve(
    service: RunningService, state_dir: Path, arrivals: list[DemoArrival], warm_s: float = 0.0
) -> tuple[float, list[Json]]:
    """Send the arrivals; returns answers a second, and all moments' rows, of the jobs that arrived after `warm_s`."""
    snapshots, pause = Snapshots(), threading.Event()
    with (
        connection_to(service.database_url) as connection,
        client_of_service(state_dir) as client,
        Session(connection) as session,
    ):
        since, began = datetime.fromtimestamp(client.stats()["now"], UTC), time.monotonic()
        before_s = _forecasting_s(session)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send_all, client, arrivals, threading.Event(), lambda *_: None)
            while not sending.done() or session.scalar(OPEN):
                snapshots.keep(session)
                pause.wait(LOOK_EVERY_S)
            for submission in sending.result():
                submission.result()
        spent_s, took_s = _forecasting_s(session) - before_s, time.monotonic() - began
        ended = select_views().where(StoredRequest.status.in_(ANSWERED), StoredRequest.arrived_at >= since)
        jobs = [JudgedJob.from_view(RequestView(*row)) for row in session.execute(ended)]
        session.expunge_all()
    first = min(job.arrived_at for job in jobs)
    share = round(spent_s / took_s, 4)
    history = History(Served(job.arrived_at, job.finished_at) for job in jobs)
    judged = judge([job for job in jobs if job.arrived_at >= first + warm_s], snapshots, history)
    return rate_while_busy(jobs), [row | {"planner_share": share} for row in judged]


def rate_while_busy(jobs: Sequence[JudgedJob]) -> float:
    """Return the answers a second in the second half of the arrivals; if all arrived at once, over all answers."""
    first, last = (extreme(job.arrived_at for job in jobs) for extreme in (min, max))
    middle = (first + last) / 2
    if last - first < 1.0:  # all jobs arrived together
        return len(jobs) / (max(job.finished_at for job in jobs) - first)
    return sum(middle < job.finished_at <= last for job in jobs) / (last - middle)


def _forecasting_s(session: Session) -> float:
    """Return the seconds that the planner in service has spent on forecasts so far."""
    snapshot = read_queue_snapshot(session)
    session.rollback()
    return 0.0 if snapshot is None else snapshot.forecasts.spent_s


if __name__ == "__main__":
    main()
