"""Measures the errors of ETAs and the coverage of their intervals, on the real stack at several loads.

`python -m benchmarks.eta --models bundled --policies fusion,magnus,baton --loads 0.6,0.9,1.3 --json F`

Each policy and model gets one service. It learns from a burst of requests; its saturation is measured under more
arrivals than it can serve; then each load follows, as a share of that saturation. An ETA is judged as the API shows it:
at submission, when service begins, and halfway between arrival and answer. An error is the difference between the
expected and the real instant of the answer, as a share of the time that was left. The table also has the errors of the
predicted lengths, on which every ETA depends. At submission, the median error in seconds stands beside those of two
naive rivals, the last hour's median response time and Little's law, and the interval's width beside that of the last
hour's response times.

The planner's snapshots are kept during the run and evaluated afterwards, so that the benchmark takes almost no CPU from
the service.
"""

import bisect
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import click
from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks.eta_rivals import History, Served, beside_rivals
from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.inputs.request_sources import Workload, arrivals_of
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.service_start import client_of_service, connection_to
from cli.demo.demo_workload import TRAINING_EXAMPLES, DemoArrival, send_all, training_examples
from cli.hosting.service_files import RunningService
from cli.option_types import CommaSeparated
from cli.service_access import POLICIES, settings_with
from models.client_requests import UNFINISHED, RequestView, select_views
from models.planning.queue_position import QueuePlace, place_in_queue
from models.planning.queue_snapshot import STALE_AFTER, QueueSnapshot, read_queue_snapshot
from models.tables import RequestStatus, StoredBatch, StoredRequest

WHOLE_S = 0.05  # ETAs with less time left than this are not judged: clocks and the network are not more exact
# columns of a request that are known before it ends
UNENDED = ("id", "model", "arrived_at", "predicted_tokens", "eta_at", "eta_low_at", "eta_high_at")


@dataclass(frozen=True, slots=True)
class Job:
    """An answered job with its batch; instants are seconds since the epoch."""

    request: StoredRequest
    batch: StoredBatch | None
    arrived_at: float
    started_at: float | None
    finished_at: float

    @classmethod
    def from_view(cls, view: RequestView) -> "Job":
        """Make a job from an ended request as the API reads it; raises ValueError if it has not ended."""
        request, started_at = view.request, view.request.started_at
        if request.finished_at is None:
            raise ValueError(f"{request.id} has not ended")
        began = None if started_at is None else started_at.timestamp()
        return cls(request, view.batch, request.arrived_at.timestamp(), began, request.finished_at.timestamp())

    @property
    def length_error(self) -> float:
        """The error of the predicted length, as a share of the real one."""
        return abs((self.request.predicted_tokens or 0) / max(1, self.request.output_tokens or 0) - 1)

    def view_at(self, at: float) -> RequestView:
        """The job as the API read it at this instant."""
        began = self.started_at is not None and self.started_at <= at
        given = {name: getattr(self.request, name) for name in UNENDED}
        status = RequestStatus.in_progress if began else RequestStatus.queued
        return RequestView(
            StoredRequest(status=status, **given), self.batch if began else None, 0, datetime.fromtimestamp(at, UTC)
        )


class Snapshots:
    """The planner's snapshots of one run."""

    def __init__(self) -> None:
        self._kept: list[QueueSnapshot] = []

    def keep(self, session: Session) -> None:
        """Keep the current snapshot unless it was kept before."""
        snapshot = read_queue_snapshot(session)
        if snapshot is not None and (not self._kept or snapshot.at > self._kept[-1].at):
            self._kept.append(snapshot)
        session.rollback()

    def place(self, job: Job, at: float) -> QueuePlace:
        """Return the ETA and position that the API showed for a job at this instant."""
        view = job.view_at(at)
        number = bisect.bisect_right(self._kept, view.now, key=lambda kept: kept.at) - 1
        known = number >= 0 and view.now - self._kept[number].at <= STALE_AFTER
        return place_in_queue(view, self._kept[number] if known else None)


def judge(jobs: Sequence[Job], snapshots: Snapshots, history: History) -> list[Json]:
    """Make a row for each moment: median error, share of answers within the interval, number of jobs, rivals."""
    rows: list[Json] = []
    for moment, at_of in MOMENTS.items():
        left = [
            (at, job.finished_at, place)
            for job in jobs
            if (at := at_of(job)) is not None
            and job.finished_at - at > WHOLE_S
            and (place := _shown_eta(moment, job, at, snapshots)).eta_at is not None
        ]
        rows.append(
            {
                "moment": moment,
                "judged": len(left),
                "median_error": _median(
                    abs(place.eta_at.timestamp() - end) / (end - at) for at, end, place in left if place.eta_at
                ),
                "coverage": _mean(
                    place.low_at.timestamp() <= end <= place.high_at.timestamp()
                    for _, end, place in left
                    if place.low_at is not None and place.high_at is not None
                ),
                "length_error": _median(job.length_error for job in jobs),
            }
        )
    shown = [
        (Served(job.arrived_at, job.finished_at), eta.timestamp(), (high - low).total_seconds())
        for job in jobs
        if (eta := job.request.eta_at) and (low := job.request.eta_low_at) and (high := job.request.eta_high_at)
    ]
    return [row | (beside_rivals(shown, history) if row["moment"] == "submission" else {}) for row in rows]


def _shown_eta(moment: str, job: Job, at: float, snapshots: Snapshots) -> QueuePlace:
    """The ETA that the API showed at this moment; at submission it is in the call's answer."""
    shown = QueuePlace(None, job.request.eta_at, job.request.eta_low_at, job.request.eta_high_at)
    return shown if moment == "submission" else snapshots.place(job, at)


MOMENTS: dict[str, Callable[[Job], float | None]] = {
    "submission": lambda job: job.arrived_at,
    "half-way": lambda job: (job.arrived_at + job.finished_at) / 2,
    "start": lambda job: job.started_at,
}


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return round(statistics.median(known), 4) if known else None


def _mean(values: Iterable[bool]) -> float | None:
    known = list(values)
    return round(statistics.fmean(known), 4) if known else None


POLICY_LIST = CommaSeparated(click.Choice(POLICIES))
COLUMNS = {
    "policy": "policy",
    "model": "model",
    "load": "load",
    "moment": "moment",
    "judged": "judged",
    **{name.replace("_", " "): f"{name}:.1%" for name in ("median_error", "coverage", "length_error", "planner_share")},
    "error, s": "error_s:.1f",
    "last hour's, s": "last_hour_error_s:.1f",
    "Little's, s": "little_error_s:.1f",
    "width, s": "width_s:.1f",
    "last hour's width, s": "last_hour_width_s:.1f",
}
BUNDLED = "bundled"
LOOK_EVERY_S = 0.25  # the planner writes its snapshot twice a second
# seconds after the burst, so that a predictor fitted to its answers is in service: the trainer checks every 5 s
SETTLE_S = 10.0
# Arrivals as a multiple of the rate at which a burst was answered: more than can be served while requests are also
# accepted. A larger value would spend more CPU on accepting than the judged loads do. Not tuned.
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
    """Send the arrivals; returns answers a second, and all moments' rows of jobs after `warm_s`."""
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
        jobs = [Job.from_view(RequestView(*row)) for row in session.execute(ended)]
        session.expunge_all()
    first = min(job.arrived_at for job in jobs)
    share = round(spent_s / took_s, 4)
    history = History(Served(job.arrived_at, job.finished_at) for job in jobs)
    judged = judge([job for job in jobs if job.arrived_at >= first + warm_s], snapshots, history)
    return rate_while_busy(jobs), [row | {"planner_share": share} for row in judged]


def rate_while_busy(jobs: Sequence[Job]) -> float:
    """Compute the rate of answers in the second half of the arrivals' time."""
    first, last = (extreme(job.arrived_at for job in jobs) for extreme in (min, max))
    middle = (first + last) / 2
    if last - first < 1.0:  # all jobs arrived at once
        return len(jobs) / (max(job.finished_at for job in jobs) - first)
    return sum(middle < job.finished_at <= last for job in jobs) / (last - middle)


def _forecasting_s(session: Session) -> float:
    """Seconds that the planner in service has spent on forecasts."""
    snapshot = read_queue_snapshot(session)
    session.rollback()
    return 0.0 if snapshot is None else snapshot.forecasting_s


if __name__ == "__main__":
    main()
