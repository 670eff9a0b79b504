"""What a service costs that nobody uses, and what a dashboard page costs that is left open: CPU milliseconds a second.

`python -m benchmarks.idle --seconds 60 [--page overview] [--json F]`
"""

import json
import time
from pathlib import Path
from threading import Event

import click
import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.live.live_figures import ServiceMonitor
from cli.hosting.service_files import RunningService

PAGE_EVERY_S = 5.0  # as webapp/static/live.js fetches a page that is open


@click.command()
@click.option("--workers", default=2, show_default=True, help="Workers of the service.")
@click.option("--settle-seconds", default=30.0, show_default=True, help="After the start, before the clock begins.")
@click.option("--seconds", default=60.0, show_default=True, help="How long the clock runs, each time.")
@click.option("--page", multiple=True, help="Then again with this page open: overview, queue, …; repeatable.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(workers: int, settle_seconds: float, seconds: float, page: tuple[str, ...], json_file: Path | None) -> None:
    """Start a service, send it nothing, and measure what its processes do."""
    figures: dict[str, dict[str, float]] = {}
    with fresh_service("fusion", ServiceOptions(workers, "40MiB"), [], seed=0) as (service, state_dir):
        Event().wait(settle_seconds)
        for name in ("", *page):
            with ServiceMonitor(service, state_dir) as monitor:
                leave_open(service, name, seconds)
                monitor.stop_clock()
                figures[f"{name} open" if name else "nobody"] = monitor.cpu_ms_a_second()
    table = Table("process", *figures, title="CPU milliseconds a second", title_justify="left")
    for process in sorted(figures["nobody"], key=lambda one: -figures["nobody"][one]):
        table.add_row(process, *(f"{figure[process]:.1f}" for figure in figures.values()))
    table.add_row("all of these", *(f"{sum(figure.values()):.1f}" for figure in figures.values()))
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps({"seconds": seconds, "cpu_ms_a_second": figures}, indent=1) + "\n")


def leave_open(service: RunningService, page: str, seconds: float) -> None:
    """Fetch the page, if any, as often as a browser does that shows it; raises httpx.HTTPStatusError if it fails."""
    until = time.monotonic() + seconds
    auth, headers = (service.dashboard_user, service.dashboard_password), {"X-Magnus-Live": "1"}
    with httpx.Client(base_url=service.url, auth=auth, headers=headers, timeout=10.0) as client:
        while (left := until - time.monotonic()) > 0:
            if page:
                client.get("/" if page == "overview" else f"/{page}").raise_for_status()
            Event().wait(min(left, PAGE_EVERY_S))


if __name__ == "__main__":
    main()
