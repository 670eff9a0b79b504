"""The API's figures, one command each: `python -m benchmarks.api FIGURE [--short] [--json FILE]`.

Each figure starts services of its own, prints its bounds and what was measured, and takes a few minutes. The short form
has small counts and says whether a figure can be measured; its times say nothing.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic

import click
from rich.table import Table

from benchmarks.api import large_amounts, refused_bodies, submissions, waiting_chats, weighted_tenants
from benchmarks.api.measured_service import MeasuredFigure
from cli.terminal import make_console

FIGURES: dict[str, Callable[[bool], MeasuredFigure]] = {
    "waiting": waiting_chats.measure,
    "submissions": submissions.measure,
    "million": large_amounts.measure_million,
    "intake": large_amounts.measure_intake,
    "tenants": weighted_tenants.measure,
    "refused": refused_bodies.measure,
}


@click.command(help=__doc__)
@click.argument("figure", type=click.Choice(list(FIGURES)))
@click.option("--short", is_flag=True, help="Small counts: whether it runs, not how fast.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(figure: str, short: bool, json_file: Path | None) -> None:
    """Measure, print, write; the exit status is 1 if a bound does not hold."""
    began = monotonic()
    measured = FIGURES[figure](short)
    table = Table("", "what", "bound", "measured", title=figure, title_justify="left")
    for row in measured.rows:
        table.add_row("holds" if row.ok else "FAILS", row.promise, row.bound, row.measured)
    console = make_console()
    console.print(table)
    console.print(f"in {monotonic() - began:.0f} s")
    if json_file is not None:
        content = {"rows": [asdict(row) for row in measured.rows], **measured.figures}
        json_file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(not all(row.ok for row in measured.rows))


if __name__ == "__main__":
    main()
