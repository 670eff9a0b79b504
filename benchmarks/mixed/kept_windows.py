"""Measures how many bulk jobs end within completion windows that were called feasible at their creation.

Simulated jobs of several tenants come beside other requests. Each is judged as the API judges it: by the work that is
left and by the errors of the jobs that have ended. Live jobs come one after the other, and a dry run judges each.
"""

import heapq
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs.request_sources import MEDIAN_WORDS, write_bulk_file
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.mixed.job_alone import WARM_LINES, serve
from benchmarks.mixed.simulated_mix import BULK_LINES, MACHINE, WORKERS, bulk_lines, interactive, run
from benchmarks.service_start import client_of_service
from cli.api_client import Client, Json
from inference.toy.toy_applications import toy_requests
from models.bulk.bulk_outlook import SPREAD, BulkOutlook
from scheduling.forecast.expectations import IntervalCalibration
from scheduling.forecast.kept_windows import KeptWindows
from scheduling.policy import Worker
from scheduling.request import Job
from scheduling.sharing.background.deadlines import Work
from scheduling.simulation.simulator import Arrival
from scheduling.simulation.trace import Trace

TENANTS = 5
LOAD, BULK_LOAD = 0.3, 0.4  # other requests and lines of jobs come at these shares of the rate that the fleet serves
MEDIAN_LINES, LINES_SIGMA, MOST_LINES = 25.0, 0.9, 300  # the lines of a job, whose logarithms are normal
SHORTEST_S, LONGEST_S = 60.0, 1800.0  # the windows, whose logarithms are uniform, so that some are infeasible
LIVE_LINES = 600.0  # the lines of a median live job, several seconds of work for two workers
LIVE_GAP_S = 4.0  # live jobs come at this interval, faster on average than they are served, so that jobs wait
LIVE_WINDOWS = ("1m", "2m", "4m")
ENDED = ("completed", "expired", "failed", "cancelled")


@dataclass(frozen=True)
class WindowedJob:
    """A bulk job with its lines, which arrive together, and its window in seconds."""

    tenant: str
    id: str
    lines: Sequence[Arrival]
    window_s: float

    @property
    def at(self) -> float:
        """Return the instant of the job's creation."""
        return self.lines[0].request.arrived_at

    def work_left(self, trace: Trace, now: float) -> Work:
        """Return the predicted work of the job's lines that have no answer at this instant."""
        work = Work()
        for line in self.lines:
            if trace.answers[line.request.id].finished_at > now:
                work = work.plus(line.request)
        return work

    def took_s(self, trace: Trace) -> float:
        """Return the seconds from the job's creation until its last answer."""
        return max(trace.answers[line.request.id].finished_at for line in self.lines) - self.at


@dataclass(frozen=True)
class JudgedWindow:
    """A job's window, the shortest one that was called feasible at its creation, and the seconds that it took."""

    window_s: float
    feasible_s: float
    took_s: float

    @property
    def feasible(self) -> bool:
        """Return whether the window was called feasible."""
        return self.feasible_s <= self.window_s

    @property
    def kept(self) -> bool:
        """Return whether the job ended within its window."""
        return self.took_s <= self.window_s


def simulated_windows(policy: str, jobs: int, seed: int) -> Json:
    """Simulate the jobs beside other requests on the fleet of `benchmarks.mixed.simulated_mix`; returns one row."""
    lines_per_s = BULK_LINES / run(policy, bulk_lines(BULK_LINES, 0)).makespan_s
    made = windowed_jobs(jobs, BULK_LOAD * lines_per_s, seed)
    others = interactive(LOAD * lines_per_s, seed, made[-1].at)
    trace = run(policy, [*others, *(line for job in made for line in job.lines)])
    return {"policy": policy, "workers": "simulated", **share_kept(list(judged(made, trace)))}


def windowed_jobs(count: int, lines_per_s: float, seed: int) -> list[WindowedJob]:
    """Draw jobs of different sizes and windows at random instants, on average this many lines a second."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(np.rint(rng.lognormal(np.log(MEDIAN_LINES), LINES_SIGMA, count)), 1, MOST_LINES).astype(int)
    instants = np.cumsum(rng.exponential(sizes.mean() / lines_per_s, count))
    windows = np.exp(rng.uniform(np.log(SHORTEST_S), np.log(LONGEST_S), count))
    lines, jobs = iter(bulk_lines(int(sizes.sum()), seed)), list[WindowedJob]()
    drawn = zip(sizes.tolist(), instants.tolist(), windows.tolist(), strict=True)
    for number, (size, at, window_s) in enumerate(drawn):
        tenant, job = f"tenant {number % TENANTS}", f"job {number}"
        own: dict[str, Any] = {"tenant": tenant, "job": job, "arrived_at": at, "deadline_at": at + window_s}
        of_job = [replace(one, request=replace(one.request, **own)) for one in islice(lines, size)]
        jobs.append(WindowedJob(tenant, job, of_job, window_s))
    return jobs


def judged(jobs: Sequence[WindowedJob], trace: Trace) -> Iterator[JudgedWindow]:
    """Yield the judgement of each job in the order of creation, made with what was known at its creation."""
    workers = [Worker(f"w{number}", MACHINE.memory, MACHINE.curves) for number in range(WORKERS)]
    calibration, windows = IntervalCalibration(), KeptWindows()
    unended: list[tuple[float, int, float, WindowedJob]] = []  # the job's end, its number, its forecast, the job
    unknown: list[tuple[float, int, float, WindowedJob]] = []  # the end of job or window, whichever is first; the same
    for number, job in enumerate(jobs):
        while unended and unended[0][0] <= job.at:
            ended_at, _, forecast_s, ended = heapq.heappop(unended)
            calibration.learn("waiting", forecast_s, SPREAD, ended.took_s(trace), ended_at)
        while unknown and unknown[0][0] <= job.at:
            _, _, forecast_s, known = heapq.heappop(unknown)
            windows.learn(forecast_s, known.window_s, known.took_s(trace) <= known.window_s)
        left = {Job(one.tenant, one.id): one.work_left(trace, job.at) for _, _, _, one in unended}
        outlook = BulkOutlook(workers, left, {}, calibration, windows, datetime.fromtimestamp(job.at, UTC))
        own_s = outlook.forecast_s(job.tenant, job.id, job.work_left(trace, job.at))
        told = outlook.of_new(own_s)
        if own_s is None or told is None:
            raise AssertionError(f"{job.id}: no forecast")
        took_s = job.took_s(trace)
        heapq.heappush(unended, (job.at + took_s, number, own_s, job))
        heapq.heappush(unknown, (job.at + min(took_s, job.window_s), number, own_s, job))
        yield JudgedWindow(job.window_s, told.feasible_s, took_s)


def share_kept(jobs: Sequence[JudgedWindow]) -> Json:
    """Return a row that counts the jobs called feasible, and how many of them ended within their windows."""
    feasible = [job for job in jobs if job.feasible]
    return {
        "jobs": len(jobs),
        "feasible": len(feasible),
        "feasible_kept": sum(job.kept for job in feasible),
        "share_kept": sum(job.kept for job in feasible) / len(feasible) if feasible else None,
        "others_kept": sum(job.kept for job in jobs if not job.feasible),
        "took_over_feasible": float(np.median([job.took_s / job.feasible_s for job in jobs])),
    }


def live_windows(policy: str, jobs: int, workers: int, seed: int) -> Json:
    """Run the jobs on a whole service, after a first job from which the service learns; returns one row."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(np.rint(rng.lognormal(np.log(LIVE_LINES), 0.5, jobs)), 1, None).astype(int).tolist()
    requests = iter(toy_requests(WARM_LINES + sum(sizes), seed, median_words=MEDIAN_WORDS))
    options = ServiceOptions(workers=workers, kv_budget="64MiB")
    with (
        fresh_service(policy, options) as (_, state_dir),
        client_of_service(state_dir) as client,
        tempfile.TemporaryDirectory() as directory,
    ):
        path = Path(directory) / "lines.jsonl"
        write_bulk_file(path, client.model(), [next(requests) for _ in range(WARM_LINES)])
        serve(client, path)
        feasible: dict[str, bool | None] = {}
        began = time.monotonic()
        for number, (size, due_s) in enumerate(zip(sizes, accumulate([LIVE_GAP_S] * jobs), strict=True)):
            write_bulk_file(path, client.model(), [next(requests) for _ in range(size)])
            told, batch = tried_and_created(client, path, LIVE_WINDOWS[number % len(LIVE_WINDOWS)])
            feasible[batch] = told["magnus"]["feasible"]
            time.sleep(max(0.0, began + due_s - time.monotonic()))
        ended = {batch: ended_batch(client, batch) for batch in feasible}
    kept = [batch for batch, one in ended.items() if one["status"] == "completed"]
    called = [batch for batch, good in feasible.items() if good]
    return {
        "policy": policy,
        "workers": f"{workers} of ours",
        "jobs": jobs,
        "feasible": len(called),
        "feasible_kept": len(set(called) & set(kept)),
        "share_kept": len(set(called) & set(kept)) / len(called) if called else None,
        "others_kept": len(set(kept) - set(called)),
        "ended_s": [one["completed_at"] and one["completed_at"] - one["created_at"] for one in ended.values()],
    }


def tried_and_created(client: Client, path: Path, window: str) -> tuple[Json, str]:
    """Upload a file, try its job in a dry run and create it; returns the dry run's answer and the job's id."""
    asked = {"input_file_id": client.upload(path)["id"], "endpoint": "/v1/responses", "completion_window": window}
    told = client.create_batch({**asked, "magnus": {"dry_run": True}})
    return told, client.create_batch(asked, uuid.uuid4().hex)["id"]


def ended_batch(client: Client, batch_id: str) -> Json:
    """Wait until a batch has ended and return it."""
    while (batch := client.batch(batch_id))["status"] not in ENDED:
        time.sleep(1.0)
    return batch
