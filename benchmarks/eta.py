"""How far ETAs err and what their intervals cover, on the real stack at several loads.

`python -m benchmarks.eta --models bundled --policies fusion,magnus,baton --loads 0.6,0.9,1.3 --json F`

Each policy and model gets one service. Requests that arrive all at once teach it and tell its saturation; each load
then follows as arrivals at that share of it. An ETA is looked at as the API would show it: at submission, at the first
look after service began, and at the first one after the middle of the time from arrival to answer. An error is the
difference between the expected and the real instant, as a share of the time that was left.
"""

import bisect
import json
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.live.live_arrivals import arrivals_of
from cli.api_client import Client, Json
from cli.demo_workload import DemoArrival, send_all
from cli.hosting.service_files import RunningService, api_address
from cli.options import POLICIES, settings_with
from models.client_requests import RequestView, select_views
from models.planning.queue_position import QueueSnapshot, place_in_queue, read_queue_snapshot
from models.session import make_engine, make_sessions
from models.tables import RequestStatus, StoredRequest
from settings import read_settings

BUNDLED = "bundled"
LOOK_EVERY_S = 0.25  # the snapshot changes twice a second; more looks would take CPU from the service
SETTLE_S = 10.0  # after the burst, so that a predictor fitted to its answers is in service: the trainer looks each 5 s
MOMENTS = ("submission", "half-way", "start")
WHOLE_S = 0.05  # ETAs with less time left than this are not judged: a look takes that long
OPEN = (RequestStatus.queued, RequestStatus.in_progress)
ENDED = text("""
    select id, extract(epoch from arrived_at)::float8 as arrived_at,
        extract(epoch from started_at)::float8 as started_at, extract(epoch from finished_at)::float8 as finished_at,
        extract(epoch from eta_at)::float8 as eta_at, extract(epoch from eta_low_at)::float8 as low_at,
        extract(epoch from eta_high_at)::float8 as high_at
    from requests where status in ('completed', 'incomplete') and arrived_at >= to_timestamp(:since)
""")


@dataclass(frozen=True, slots=True)
class EtaLook:
    """What a client was told at an instant; instants in seconds since the epoch, None where nothing was told."""

    at: float
    eta_at: float | None
    low_at: float | None
    high_at: float | None


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job with its ETA at submission, once it was answered."""

    submission: EtaLook
    started_at: float | None
    finished_at: float


@click.command()
@click.option("--policies", default="fusion,magnus,baton", show_default=True, help="Comma-separated.")
@click.option("--models", default=BUNDLED, show_default=True, help="Comma-separated: bundled, or names fetched.")
@click.option("--loads", default="0.6,0.9,1.3", show_default=True, help="Shares of saturation, comma-separated.")
@click.option("--seconds", default=60.0, show_default=True, help="Of arrivals at each load.")
@click.option("--warm-seconds", default=20.0, show_default=True, help="Of arrivals at each load before they count.")
@click.option("--burst", default=200, show_default=True, help="Requests at once that tell the saturation.")
@click.option("--workers", default=1, show_default=True, help="Workers of each service.")
@click.option("--kv-budget", default="40MiB", show_default=True, help="Of each worker.")
@click.option("--max-prompt-tokens", type=click.IntRange(1), help="Lmax of the service; its default if unset.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Gmax of the service; its default if unset.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the rows there.")
def main(
    policies: str,
    models: str,
    loads: str,
    seconds: float,
    warm_seconds: float,
    burst: int,
    workers: int,
    kv_budget: str,
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
    seed: int,
    json_file: Path | None,
) -> None:
    """Measure the errors and the coverage of ETAs for each policy, model and load."""
    unknown = [name for name in policies.split(",") if name not in POLICIES]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: no policy ({', '.join(POLICIES)})")
    rows: list[Json] = []
    for model, policy in product(models.split(","), policies.split(",")):
        directory = None if model == BUNDLED else settings_with(model=model).model
        options = ServiceOptions(
            workers, kv_budget, directory, max_prompt_tokens, max_output_tokens, pretrained=model == BUNDLED
        )
        workload = "toy" if model == BUNDLED else "instructions"
        at_once = [replace(one, at_s=0.0) for one in arrivals_of(workload, burst, 1.0, seed)]
        with fresh_service(policy, options, at_once, seed) as (service, state_dir):
            saturation, _ = _serve(service, state_dir, at_once)
            threading.Event().wait(SETTLE_S)
            for load in map(float, loads.split(",")):
                rate = load * saturation
                arrivals = arrivals_of(workload, max(1, round(rate * (warm_seconds + seconds))), rate, seed + 1)
                reached, judged = _serve(service, state_dir, arrivals, warm_seconds)
                shared = {"policy": policy, "model": model, "load": load, "rate": round(rate, 3)}
                rows += [shared | {"requests_per_s": round(reached, 3)} | row for row in judged]
                if json_file:  # after each load, so that an interrupted comparison keeps its rows
                    json_file.write_text(json.dumps(rows, indent=1) + "\n")
    Console(width=120).print(table(rows))


def _serve(
    service: RunningService, state_dir: Path, arrivals: list[DemoArrival], warm_s: float = 0.0
) -> tuple[float, list[Json]]:
    """Answers a second until the last one, and the rows of all moments, of jobs that arrived after `warm_s`."""
    engine = make_engine(service.database_url, pool_size=1, name="benchmark")
    looks: dict[str, list[EtaLook]] = defaultdict(list)
    pause = threading.Event()
    try:
        with Client(*api_address(read_settings(state_dir=state_dir))) as client, make_sessions(engine)() as session:
            since, began = client.stats()["now"], time.monotonic()
            before_s = _forecasting_s(session)
            with ThreadPoolExecutor(1) as pool:
                sending = pool.submit(send_all, client, arrivals, threading.Event(), lambda *_: None)
                while _look(session, looks) or not sending.done():
                    pause.wait(LOOK_EVERY_S)
                for submission in sending.result():
                    submission.result()
            while _look(session, looks):
                pause.wait(LOOK_EVERY_S)
            spent_s, took_s = _forecasting_s(session) - before_s, time.monotonic() - began
            ended = {row.id: _job_end(row) for row in session.execute(ENDED, {"since": since})}
    finally:
        engine.dispose()
    first = min(job.submission.at for job in ended.values())
    rate = len(ended) / (max(job.finished_at for job in ended.values()) - first)
    ended = {name: job for name, job in ended.items() if job.submission.at >= first + warm_s}
    share = round(spent_s / took_s, 4)
    return rate, [row | {"planner_share": share} for row in judge(ended, looks)]


def _look(session: Session, looks: dict[str, list[EtaLook]]) -> int:
    """Note what the API would say of each open job; returns how many are open."""
    snapshot = read_queue_snapshot(session)
    views = [RequestView(*row) for row in session.execute(select_views().where(StoredRequest.status.in_(OPEN)))]
    for view in views:
        looks[view.request.id].append(_shown(view, snapshot))
    session.rollback()
    session.expunge_all()
    return len(views)


def _shown(view: RequestView, snapshot: QueueSnapshot | None) -> EtaLook:
    place = place_in_queue(view, snapshot)
    told = (None if at is None else at.timestamp() for at in (place.eta_at, place.low_at, place.high_at))
    return EtaLook(view.now.timestamp(), *told)


def _job_end(row: Any) -> JobEnd:
    submission = EtaLook(row.arrived_at, row.eta_at, row.low_at, row.high_at)
    return JobEnd(submission, row.started_at, row.finished_at)


def _forecasting_s(session: Session) -> float:
    """Seconds that the planner in service has spent on forecasts."""
    snapshot = read_queue_snapshot(session)
    session.rollback()
    return 0.0 if snapshot is None else float(snapshot.state.get("forecasting_s", 0.0))


def judge(ended: dict[str, JobEnd], looks: dict[str, list[EtaLook]]) -> list[Json]:
    """A row for each moment: median error, share of answers within the interval, and how many were judged."""
    rows = []
    for moment in MOMENTS:
        told = [
            (look, job.finished_at) for name, job in ended.items() if (look := _at(moment, job, looks.get(name, ())))
        ]
        left = [(look, end) for look, end in told if look.eta_at is not None and end - look.at > WHOLE_S]
        rows.append(
            {
                "moment": moment,
                "judged": len(left),
                "median_error": _median(abs((look.eta_at or 0.0) - end) / (end - look.at) for look, end in left),
                "coverage": _mean(
                    look.low_at <= end <= look.high_at
                    for look, end in left
                    if look.low_at is not None and look.high_at is not None
                ),
            }
        )
    return rows


def _at(moment: str, job: JobEnd, looks: Sequence[EtaLook]) -> EtaLook | None:
    """The look at this moment; None if there was none before the answer."""
    if moment == "submission":
        return job.submission
    half_way = (job.submission.at + job.finished_at) / 2
    since = half_way if moment == "half-way" else job.started_at
    if since is None:
        return None
    place = bisect.bisect_left(looks, since, key=lambda look: look.at)
    return looks[place] if place < len(looks) else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return round(statistics.median(known), 4) if known else None


def _mean(values: Iterable[bool]) -> float | None:
    known = list(values)
    return round(statistics.fmean(known), 4) if known else None


def table(rows: list[Json]) -> Table:
    """One line for each row."""
    shown = Table(title="ETAs", title_justify="left")
    columns = ("policy", "model", "load", "moment", "judged", "median_error", "coverage", "planner_share")
    for name in columns:
        shown.add_column(name.replace("_", " "), justify="right" if name not in columns[:2] else "left")
    for row in rows:
        shown.add_row(
            *(
                f"{row[name]:.1%}" if isinstance(row[name], float) and name != "load" else str(row[name])
                for name in columns
            )
        )
    return shown


if __name__ == "__main__":
    main()
