"""The CPU of a service to which nobody sends anything, with and without an open page of its dashboard."""

import time

import httpx

from benchmarks.api.measured_service import MeasuredFigure, MeasuredService, measured_service

PAGES = {"nobody": None, "overview open": "/", "queue open": "/queue", "workers open": "/workers"}
PAGE_EVERY_S = 5.0  # as webapp/static/live.js fetches a page that is open
SETTLE_S = 30.0  # after the start
MOST_MS, MOST_OF_A_PAGE_MS = 20, 10  # CPU milliseconds a second of all processes, and what a page may add


def measure(short: bool) -> MeasuredFigure:
    """Measure a service with two workers for a minute without and with each page."""
    measured, seconds = MeasuredFigure(), 2.0 if short else 60.0
    with measured_service("--workers", "2") as service:
        time.sleep(seconds if short else SETTLE_S)
        for state, page in PAGES.items():
            measured.figures[state] = used = cpu_ms_a_second(service, page, seconds)
            whole, alone = sum(used.values()), sum(measured.figures["nobody"].values())
            largest = ", ".join(f"{name} {used[name]:.1f}" for name in sorted(used, key=used.__getitem__)[:-4:-1])
            bound = MOST_MS if page is None else alone + MOST_OF_A_PAGE_MS
            measured.below(f"{state}: CPU of all processes a second", bound, whole, "ms", f" ({largest})")
    return measured


def cpu_ms_a_second(service: MeasuredService, page: str | None, seconds: float) -> dict[str, float]:
    """Fetch the page, if any, as a browser that shows it; returns the CPU milliseconds a second of each process."""
    names = service.process_names()
    before, ends_at = {name: service.cpu_s(name) for name in names}, time.monotonic() + seconds
    auth, headers = (service.facts.dashboard_user, service.facts.dashboard_password), {"X-Magnus-Live": "1"}
    with httpx.Client(base_url=service.url, auth=auth, headers=headers, timeout=10.0) as client:
        while (left := ends_at - time.monotonic()) > 0:
            if page:
                client.get(page).raise_for_status()
            time.sleep(min(left, PAGE_EVERY_S))
    return {name: 1000 * (service.cpu_s(name) - before[name]) / seconds for name in names}
