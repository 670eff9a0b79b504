"""Measures the API's figures, one command for each: `python -m benchmarks.api FIGURE [--short] [--json FILE]`.

Each figure starts its own services, prints its bounds and the measured values, and takes a few minutes. The short form
uses small counts: it shows that a figure can be measured, and its times mean nothing.
"""

import sys
from dataclasses import asdict, replace
from time import monotonic
from typing import Any

import click

from benchmarks.api.idle_service import IDLE
from benchmarks.api.large_amounts import INTAKE, MILLION
from benchmarks.api.refused_bodies import REFUSED
from benchmarks.api.submissions import FULL, SUBMISSIONS
from benchmarks.api.waiting_chats import WAITING
from benchmarks.api.waiting_lines import WAITING_LINES
from benchmarks.api.weighted_tenants import TENANTS
from benchmarks.experiment import Experiment
from benchmarks.harness import Json, Results, json_option, print_table

# Each experiment has a long and a short workload.
FIGURES: dict[str, Experiment[Any, Any]] = {
    "waiting": WAITING,
    "submissions": SUBMISSIONS,
    "full": FULL,
    "million": MILLION,
    "lines": WAITING_LINES,
    "intake": INTAKE,
    "tenants": TENANTS,
    "refused": REFUSED,
    "idle": IDLE,
}


@click.command(help=__doc__)
@click.argument("figure", type=click.Choice(list(FIGURES)))
@click.option("--short", is_flag=True, help="Small counts: whether it runs, not how fast.")
@json_option
def main(figure: str, short: bool, results: Results) -> None:
    """Measure, print, write; the exit status is 1 if a bound does not hold."""
    began, form, rows, figures = monotonic(), "short" if short else "long", list[Json](), dict[str, Json]()
    experiment = FIGURES[figure]
    for run in replace(experiment, workload={form: experiment.workload[form]}).runs():
        rows += [{"system": run["system"], **asdict(row)} for row in run["rows"]]
        figures[run["system"]] = run["figures"]
        results.write({"rows": rows, **figures})
    shown = [{"": "holds" if row["ok"] else "FAILS", **row} for row in rows]
    print_table(shown, ("", "system", "promise", "bound", "measured"), figure)
    click.echo(f"in {monotonic() - began:.0f} s")
    sys.exit(not all(row["ok"] for row in rows))


if __name__ == "__main__":
    main()
