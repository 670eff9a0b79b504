"""Interactive requests beside a bulk job, simulated and, with --live, on a real service; one table each.

`python -m benchmarks.mixed [--live] [--json FILE]`; with `--makespan` only a bulk job alone, and by how much it takes
longer than the ideal.
"""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks.mixed.live_mix import live_makespan, measure_live, simulated_makespan
from benchmarks.mixed.simulated_mix import Mix, measure
from cli.terminal import make_console


@click.command()
@click.option("--policies", default="fusion,magnus", show_default=True, help="Comma-separated.")
@click.option(
    "--loads", default="0.3,0.6", show_default=True, help="Interactive shares of capacity; empty: none simulated."
)
@click.option("--live", is_flag=True, help="Also on a real service, for some three minutes.")
@click.option("--rate", default=8.0, show_default=True, help="Interactive requests a second, live.")
@click.option("--phase-s", default=25.0, show_default=True, help="Seconds of each of the three live phases.")
@click.option("--lines", default=16000, show_default=True, help="Lines of the live bulk job.")
@click.option(
    "--workers", default=1, show_default=True, help="Live workers; of a makespan of our own workers at least 2."
)
@click.option("--makespan", is_flag=True, help="Only a bulk job alone, simulated, on paced workers and on ours.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(
    policies: str,
    loads: str,
    live: bool,
    rate: float,
    phase_s: float,
    lines: int,
    workers: int,
    makespan: bool,
    seed: int,
    json_file: Path | None,
) -> None:
    """Measure what a bulk job costs interactive requests, and how much of the spare capacity it uses."""
    names = [name for name in policies.split(",") if name]
    if makespan:
        rows = [simulated_makespan(name, lines, seed) for name in names]
        rows += [live_makespan(names[0], lines, max(2, workers), paced, seed) for paced in (True, False)]
        make_console().print(table("makespan of a bulk job", rows))
        write(json_file, {"makespan": rows})
        return
    mixes = [Mix(name, float(load), seed) for name in names for load in loads.split(",") if load]
    figures: dict[str, Any] = {}
    if mixes:
        figures["simulated"] = measure(mixes)
        make_console().print(table("simulated", figures["simulated"]))
    if live:
        figures["live"] = [measure_live(name, rate, phase_s, lines, workers, seed) for name in names[:1]]
        make_console().print(table("live", figures["live"]))
    write(json_file, figures)


def write(json_file: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures, if a file is given."""
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """One row for each; columns are all figures that any row has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = Table(*names, title=title, title_justify="left")
    for row in rows:
        cells = (row.get(name, "") for name in names)
        shown.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return shown


if __name__ == "__main__":
    main()
