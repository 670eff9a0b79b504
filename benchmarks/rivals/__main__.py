"""Compares `fusion` with twelve published schedulers in the simulator: `python -m benchmarks.rivals --data DIR`

Each cell is a workload at a multiple of saturation with predictions of one quality. `fusion` should be first or within
2 % of the best rival in mean, P99 and goodput (the share of requests within five times their time alone), and within
10 % in P50; the cells where it is not are listed. Without DIR, which has requests/*.jsonl, `mixed` consists of the
repository's toy requests, and there is no `hard`. `benchmarks/rivals/published_rules.py` describes the rivals.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import click

from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.inputs.request_sources import data_option
from benchmarks.pictures import panels
from benchmarks.rivals.cells import AIMS, ENGINES, KINDS, POLICIES, Run, compared, saturation
from benchmarks.rivals.published_rules import PREDICTING
from benchmarks.rivals.rival_workloads import TAUS, WORKLOADS, read_workloads
from cli.option_types import CommaSeparated
from scheduling.policies.fusion.priority_key import FAVOURS


@click.command(help=__doc__)
@data_option
@click.option("--workloads", type=CommaSeparated(click.Choice(WORKLOADS)), default=",".join(WORKLOADS))
@click.option("--loads", type=CommaSeparated(float), default="0.7,1,1.3,2", show_default=True, help="Of saturation.")
@click.option("--predictions", type=CommaSeparated(click.Choice([*TAUS])), default=",".join(TAUS), show_default=True)
@click.option("--seeds", type=CommaSeparated(int), default="1,2,3", show_default=True)
@click.option("--policies", type=CommaSeparated(click.Choice([*POLICIES])), default=",".join(POLICIES))
@click.option("--requests", default=1500, show_default=True, help="Requests of each simulation.")
@click.option("--speeds", type=CommaSeparated(float), default="1,1", show_default=True, help="Of workers; 1 is a V100.")
@click.option("--favour", type=click.Choice([*FAVOURS]), default="mean", show_default=True, help="Of `fusion`.")
@click.option("--engine", type=click.Choice([*ENGINES]), default="chunked", show_default=True, help="How rows join.")
@click.option(
    "--against", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Others' earlier figures."
)
@click.option("--processes", type=click.IntRange(1, 2), default=2, show_default=True)
@json_option
@click.option("--plot", type=click.Path(path_type=Path, file_okay=False), help="Write a picture there.")
def main(
    data: Path | None,
    workloads: list[str],
    loads: list[float],
    predictions: list[str],
    seeds: list[int],
    policies: list[str],
    requests: int,
    speeds: list[float],
    favour: str,
    engine: str,
    against: Path | None,
    processes: int,
    results: Results,
    plot: Path | None,
) -> None:
    """Simulate, write after each run, and print each cell."""
    read = {"chat": None, **(read_workloads(data) if workloads != ["chat"] else {})}
    runs = []
    for workload in (name for name in workloads if name in read):
        rate = saturation(read[workload], speeds, engine)
        say(f"{workload}: saturation is {rate:.2f} requests a second")
        for load, seed, name in product(loads, seeds, policies):
            one = Run(
                name, workload, load, predictions[0], seed, read[workload], rate, requests, speeds, engine, favour
            )
            runs += [replace(one, prediction=of) for of in (predictions if name in PREDICTING else predictions[:1])]
    known: list[Json] = json.loads(against.read_text())["figures"] if against else []
    rows = [row for row in known if row["policy"] not in policies]
    with ProcessPoolExecutor(processes, initializer=os.nice, initargs=(10,)) as pool:
        for number, row in enumerate(pool.map(Run.figures, runs), 1):
            rows += [row] if row["policy"] in PREDICTING else [row | {"prediction": of} for of in predictions]
            results.write(rows)
            say(f"{number} of {len(runs)}: {row['policy']}, {row['workload']} at {row['load']:g}, {row['mean']:.1f} s")
    cells = list(compared(rows))
    report(cells)
    if plot is not None:
        draw_ratios(cells, plot / "rivals.svg")


def report(cells: Sequence[Json]) -> None:
    """Print each cell's policies, and the cells where `fusion` is behind."""
    for cell in cells:
        title = f"{cell['workload']} at {cell['load']:g} of saturation, predictions: {cell['prediction']}"
        print_table([{"policy": name, **own} for name, own in cell["policies"].items()], ("policy", *AIMS), title)
    every = [{"figure": figure, **cell, **cell.get(figure, {})} for cell in cells for figure in AIMS]
    behind = [one for one in every if not one.get("kept", True)]
    title = f"fusion is behind the best rival in {len(behind)} of {len(every)} figures"
    print_table(behind, (*KINDS, "figure", "best", "ratio"), title)


def draw_ratios(cells: Sequence[Json], path: Path) -> None:
    """Draw a panel for each figure: a line for each workload and quality over the load, and the aim."""
    kinds = [*product(enumerate(WORKLOADS), zip((":", "--", "-"), TAUS, strict=True))]
    with panels(path, 1, len(AIMS), (16, 4.5)) as made:
        for panel, (figure, aim) in zip(made[0], AIMS.items(), strict=True):
            for (colour, name), (style, quality) in kinds:
                own = [
                    one for one in cells if (one["workload"], one["prediction"]) == (name, quality) and figure in one
                ]
                line = [one["load"] for one in own], [one[figure]["ratio"] for one in own]
                panel.plot(*line, style, marker="o", color=f"C{colour}", label=f"{name}, {quality}")
            panel.axhline(aim, color="black", linewidth=0.8)
            panel.set(title=f"{figure}: fusion over the best rival", xlabel="load over saturation")
        made[0][0].legend(fontsize="small")


if __name__ == "__main__":
    main()
