"""Measures the CPU of a service to which no client sends anything, with and without an open page of its dashboard."""

import time
from functools import partial

import httpx

from benchmarks.api.measured_service import MeasuredFigure, MeasuredService, StartService, measured_service
from benchmarks.experiment import Experiment
from benchmarks.harness import Json
from benchmarks.service_start import process_ids

PAGES = {"nobody": None, "overview open": "/", "queue open": "/queue", "workers open": "/workers"}
PAGE_EVERY_S = 5.0  # webapp/dashboard/static/live.js fetches an open page this often
SETTLE_S = 30.0  # the service gets this long after its start before it is measured
MOST_MS, MOST_OF_A_PAGE_MS = 20, 10  # the most CPU ms a second of all processes, and the most that a page may add


def measure(start: StartService, seconds: float) -> Json:
    """Measure a service for these seconds without an open page, and again with each page open."""
    measured = MeasuredFigure()
    with start() as service:
        time.sleep(min(seconds, SETTLE_S))
        for state, page in PAGES.items():
            measured.figures[state] = used = cpu_ms_a_second(service, page, seconds)
            whole, alone = sum(used.values()), sum(measured.figures["nobody"].values())
            largest = ", ".join(f"{name} {used[name]:.1f}" for name in sorted(used, key=used.__getitem__)[:-4:-1])
            bound = MOST_MS if page is None else alone + MOST_OF_A_PAGE_MS
            measured.below(f"{state}: CPU of all processes a second", bound, whole, "ms", f" ({largest})")
    return measured.as_run()


def cpu_ms_a_second(service: MeasuredService, page: str | None, seconds: float) -> dict[str, float]:
    """Fetch the page, if any, as often as a browser does; returns the CPU milliseconds a second of each process."""
    names = process_ids(service.state_dir)
    before, ends_at = {name: service.cpu_s(name) for name in names}, time.monotonic() + seconds
    auth, headers = (service.facts.dashboard_user, service.facts.dashboard_password), {"X-Magnus-Live": "1"}
    with httpx.Client(base_url=service.url, auth=auth, headers=headers, timeout=10.0) as client:
        while (left := ends_at - time.monotonic()) > 0:
            if page:
                client.get(page).raise_for_status()
            time.sleep(min(left, PAGE_EVERY_S))
    return {name: 1000 * (service.cpu_s(name) - before[name]) / seconds for name in names}


IDLE = Experiment({"long": 60.0, "short": 2.0}, {"two workers": partial(measured_service, "--workers", "2")}, measure)
