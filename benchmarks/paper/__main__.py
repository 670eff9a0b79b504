"""Compares every published policy with its paper: `python -m benchmarks.paper --data DIR [--json F] [--plot DIR]`.

Simulates the experiments of Magnus, SCLS, Sequence Scheduling and BATON with cost curves fitted to their machines
(`scheduling.simulation.published_costs`) and real lengths, prints each figure beside the paper's own, and compares all
policies, including fusion, over common workloads. DIR has requests/*.jsonl, traces/*.csv and lengths/*.json.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from benchmarks.harness import Column, CommaSeparated, Results, json_option, print_table
from benchmarks.paper import (
    baton_experiments,
    fusion_experiments,
    magnus_experiments,
    scls_experiments,
    sequence_experiments,
)
from benchmarks.paper.simulation_runs import Row, SimulationRun, Workloads, execute_in_pool, use_workloads
from benchmarks.pictures import panels, plot_over_rate
from benchmarks.simulated_workloads import read_requests, read_trace, read_vicuna

PAPERS: dict[str, ModuleType] = {
    "magnus": magnus_experiments,
    "scls": scls_experiments,
    "sequence": sequence_experiments,
    "baton": baton_experiments,
    "ours": fusion_experiments,
}
COLUMNS: dict[str, Column] = {
    "run": lambda row: run_name(row),
    "req/s": "requests_per_s",
    "valid/s": "valid_tokens_per_s",
    "total/s": "total_tokens_per_s",
    **{name: f"response_s.{name}" for name in ("mean", "p95", "p99", "max")},
    "batch": "batch_size_mean:.1f",
    "waste": "wasted_share:.2f",
}


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--only", type=CommaSeparated(click.Choice(list(PAPERS))), default=",".join(PAPERS), show_default=True)
@click.option("--quick", is_flag=True, help="Few rates for a minute each: that it runs, not what it finds.")
@click.option("--predictor", default="usin", show_default=True, help="What makes the real predictions.")
@click.option("--processes", default=os.cpu_count(), show_default=True)
@json_option
@click.option("--plot", "plot_directory", type=click.Path(path_type=Path), help="Draw pictures into this directory.")
def main(
    data: Path,
    only: list[str],
    quick: bool,
    predictor: str,
    processes: int,
    results: Results,
    plot_directory: Path | None,
) -> None:
    """Simulate, compare, print."""
    papers = [PAPERS[name] for name in only]
    runs: list[SimulationRun] = [run for paper in papers for run in paper.runs("real", quick)]
    workloads = read_workloads(data, predictor)
    with ProcessPoolExecutor(processes, get_context("spawn"), use_workloads, (workloads,)) as pool:
        rows = list(pool.map(execute_in_pool, runs))
    for paper in papers:
        paper.compare_with_paper(rows)
    for experiment in dict.fromkeys(row["experiment"] for row in rows):
        print_experiment([row for row in rows if row["experiment"] == experiment])
    results.write(json.loads(json.dumps(rows), parse_float=lambda figure: float(f"{float(figure):.5g}")))
    if plot_directory:
        draw(rows, plot_directory)


def read_workloads(data: Path, predictor: str) -> Workloads:
    """Read every workload; returns them by name."""
    mixed, hard = read_requests(data, predictor)
    traces = {name: read_trace(data / "traces" / f"azure_2023_{name}.csv") for name in ("conv", "code")}
    return {
        "mixed": mixed,
        "hard": hard,
        "azure_conv": traces["conv"],
        "azure_code": traces["code"],
        "conversation": traces["conv"].at_random_instants(),
        "vicuna": read_vicuna(data / "lengths" / "vicuna_7b_alpaca_val.json"),
    }


def print_experiment(rows: Sequence[Row]) -> None:
    """Print the rows of one experiment, then the comparisons of each row with the paper."""
    print_table(rows, COLUMNS, rows[0]["experiment"])
    for row in rows:
        for what, figure in row["paper"].items():
            click.echo(f"  {run_name(row)}: {what}: {_with_printed_range(figure)}")


def run_name(row: Row) -> str:
    """Policy, predictor, workload, rate, slice length and workers, as far as the row has them."""
    rate = f"{row['rate']:g}/s" if row["rate"] else ""
    slices = f"S={row['slice_tokens']} W={row['workers']}" if row.get("slice_tokens") else ""
    return " ".join(part for part in (row["policy"], row["predictor"], row["workload"], rate, slices) if part)


def draw(rows: Sequence[Row], directory: Path) -> None:
    """Draw one picture for each experiment and workload with several rates, and BATON's curves over time."""
    if over_time := [row for row in rows if "instants_s" in row]:
        draw_over_time(over_time, directory / "baton-fig-5-6-7.svg")
    for name, workload in sorted({(row["experiment"], row["workload"]) for row in rows if row["rate"]}):
        chosen = [row for row in rows if (row["experiment"], row["workload"]) == (name, workload)]
        if len({row["rate"] for row in chosen}) > 1:
            file = f"{name} {workload}.svg".replace(",", "").replace(" ", "-")
            plot_over_rate(chosen, _label, directory / file, logarithmic=True)


def draw_over_time(rows: Sequence[Row], path: Path) -> None:
    """BATON's Fig. 5 to 7: one column for each batch size, one row for each figure."""
    batches = sorted({row["batch"] for row in rows})
    figures = {"completed": "completed queries", "generated_tokens": "tokens", "cached_tokens": "cached tokens"}
    with panels(path, len(figures), len(batches), (3.6 * len(batches), 8)) as made:
        for column, batch in enumerate(batches):
            for panel, (name, title) in zip(made[:, column], figures.items(), strict=True):
                for row in rows:
                    if row["batch"] == batch:
                        panel.plot(row["instants_s"], row[name], label=row["policy"])
                panel.set(title=f"batches of {batch}" if name == "completed" else "", xlabel="s", ylabel=title)
                panel.grid(alpha=0.3)
        made[0][0].legend(fontsize="small")


def _label(row: Row) -> str:
    return f"{row['policy']}, {row['predictor']}" if row["predictor"] not in ("", "none") else str(row["policy"])


def _with_printed_range(figure: dict[str, Any]) -> str:
    low, high = figure["paper"]
    printed = f"{low:g}" if low == high and low is not None else f"{_number(low)} to {_number(high)}"
    return f"{figure['ours']:.3g} (paper: {printed})" if (low, high) != (None, None) else f"{figure['ours']:.3g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
