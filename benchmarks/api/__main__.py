"""Measures the API's figures, one command for each: `python -m benchmarks.api FIGURE [--short] [--json FILE]`.

Each figure starts its own services, prints its bounds and the measured values, and takes a few minutes. The short form
uses small counts: it shows that a figure can be measured, and its times mean nothing.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic

import click

from benchmarks.api import (
    idle_service,
    large_amounts,
    refused_bodies,
    submissions,
    waiting_chats,
    waiting_lines,
    weighted_tenants,
)
from benchmarks.api.measured_service import MeasuredFigure
from benchmarks.harness import Results, json_option, print_table

FIGURES: dict[str, Callable[[bool], MeasuredFigure]] = {
    "waiting": waiting_chats.measure,
    "submissions": submissions.measure,
    "full": submissions.measure_full,
    "million": large_amounts.measure_million,
    "lines": waiting_lines.measure,
    "intake": large_amounts.measure_intake,
    "tenants": weighted_tenants.measure,
    "refused": refused_bodies.measure,
    "idle": idle_service.measure,
}


@click.command(help=__doc__)
@click.argument("figure", type=click.Choice(list(FIGURES)))
@click.option("--short", is_flag=True, help="Small counts: whether it runs, not how fast.")
@json_option
def main(figure: str, short: bool, results: Results) -> None:
    """Measure, print, write; the exit status is 1 if a bound does not hold."""
    began = monotonic()
    measured = FIGURES[figure](short)
    rows = [{"": "holds" if row.ok else "FAILS", **asdict(row)} for row in measured.rows]
    print_table(rows, {"": "", "what": "promise", "bound": "bound", "measured": "measured"}, figure)
    click.echo(f"in {monotonic() - began:.0f} s")
    results.write({"rows": [asdict(row) for row in measured.rows], **measured.figures})
    sys.exit(not all(row.ok for row in measured.rows))


if __name__ == "__main__":
    main()
