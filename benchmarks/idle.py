"""What a service costs that nobody uses: CPU milliseconds a second of each of its processes.

`python -m benchmarks.idle --seconds 60 --json F`
"""

import json
from pathlib import Path
from threading import Event

import click
from rich.console import Console
from rich.table import Table

from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.live.live_figures import ServiceMonitor


@click.command()
@click.option("--workers", default=2, show_default=True, help="Workers of the service.")
@click.option("--settle-seconds", default=30.0, show_default=True, help="After the start, before the clock begins.")
@click.option("--seconds", default=60.0, show_default=True, help="How long the clock runs.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(workers: int, settle_seconds: float, seconds: float, json_file: Path | None) -> None:
    """Start a service, send it nothing, and measure what its processes do."""
    pause = Event()
    with fresh_service("fusion", ServiceOptions(workers, "40MiB"), [], seed=0) as (service, state_dir):
        pause.wait(settle_seconds)
        with ServiceMonitor(service, state_dir) as monitor:
            pause.wait(seconds)
            monitor.stop_clock()
            figures = monitor.cpu_ms_a_second()
    table = Table("process", "CPU ms a second", title="A service that nobody uses", title_justify="left")
    for name, milliseconds in sorted(figures.items(), key=lambda figure: -figure[1]):
        table.add_row(name, f"{milliseconds:.1f}")
    table.add_row("all of these", f"{sum(figures.values()):.1f}")
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps({"seconds": seconds, "cpu_ms_a_second": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
