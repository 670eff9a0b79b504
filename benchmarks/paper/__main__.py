"""Compares every published policy with its paper: `python -m benchmarks.paper --data DIR [--json F] [--plot DIR]`.

Simulates the experiments of Magnus, SCLS, Sequence Scheduling and BATON with cost curves fitted to their machines
(`benchmarks.published_costs`) and real lengths, prints each figure beside the paper's own, and compares all
policies, including fusion, over common workloads. DIR has requests/*.jsonl, traces/*.csv and lengths/*.json. Without it
only Magnus and BATON are simulated, Magnus with the lengths of the repository's toy requests.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from benchmarks.harness import Column, Results, json_option, print_table, say
from benchmarks.inputs.request_sources import OWN, TokenCounter, data_option, tokenizer_option
from benchmarks.inputs.simulated_workloads import read_requests, read_trace, read_vicuna
from benchmarks.paper import (
    baton_experiments,
    fusion_experiments,
    magnus_experiments,
    scls_experiments,
    sequence_experiments,
)
from benchmarks.paper.simulation_runs import Row, SimulationRun, Workloads, execute_in_pool, use_workloads
from benchmarks.pictures import panels, plot_over_rate
from cli.option_types import CommaSeparated

PAPERS: dict[str, ModuleType] = {
    "magnus": magnus_experiments,
    "scls": scls_experiments,
    "sequence": sequence_experiments,
    "baton": baton_experiments,
    "ours": fusion_experiments,
}
OWN_PAPERS = ("magnus", "baton")  # the experiments of these papers need no data directory
COLUMNS: dict[str, Column] = {
    "run": lambda row: run_name(row),
    "req/s": "requests_per_s",
    "valid/s": "valid_tokens_per_s",
    "total/s": "total_tokens_per_s",
    **{name: f"response_s.{name}" for name in ("mean", "p50", "p95", "p99", "max")},
    "batch": "batch_size_mean:.1f",
    "invalid": lambda row: f"{row['invalid_tokens'] / row['requests']:.0f}",  # tokens a request
    "pad": lambda row: f"{row['pad_tokens'] / row['requests']:.0f}",
    "waste": "wasted_share:.2f",
}


@click.command(help=__doc__)
@data_option
@click.option("--only", type=CommaSeparated(click.Choice(list(PAPERS))), help=f"Of {', '.join(PAPERS)}; all if unset.")
@tokenizer_option
@click.option("--quick", is_flag=True, help="Few rates for a minute each: that it runs, not what it finds.")
@click.option("--predictor", default="usin", show_default=True, help="What makes the real predictions.")
@click.option("--processes", default=os.cpu_count(), show_default=True)
@json_option
@click.option("--plot", "plot_directory", type=click.Path(path_type=Path), help="Draw pictures into this directory.")
def main(
    data: Path | None,
    only: list[str] | None,
    tokens: TokenCounter,
    quick: bool,
    predictor: str,
    processes: int,
    results: Results,
    plot_directory: Path | None,
) -> None:
    """Simulate, compare, print."""
    papers = [PAPERS[name] for name in only or (PAPERS if data else OWN_PAPERS)]
    if data is None and any(paper not in map(PAPERS.get, OWN_PAPERS) for paper in papers):
        raise click.UsageError(f"without --data only {' and '.join(OWN_PAPERS)} can be simulated")
    say(f"requests: {data or OWN}; counted by {tokens.name}")
    runs: list[SimulationRun] = [run for paper in papers for run in paper.runs("real", quick)]
    workloads = read_workloads(data, predictor, tokens)
    with ProcessPoolExecutor(processes, get_context("spawn"), use_workloads, (workloads,)) as pool:
        rows = list(pool.map(execute_in_pool, runs))
    for paper in papers:
        paper.compare_with_paper(rows)
    for experiment in dict.fromkeys(row["experiment"] for row in rows):
        print_experiment([row for row in rows if row["experiment"] == experiment])
    shortened = json.loads(json.dumps(rows), parse_float=lambda figure: float(f"{float(figure):.5g}"))
    results.write({"requests": str(data.name) if data else OWN, "tokens": tokens.name, "rows": shortened})
    if plot_directory:
        draw(rows, plot_directory)


def read_workloads(data: Path | None, predictor: str, tokens: TokenCounter) -> Workloads:
    """Read every workload of the data directory; returns them by name."""
    workloads = read_requests(data, predictor, tokens)
    if data is None:
        return workloads
    traces = {name: read_trace(data / "traces" / f"azure_2023_{name}.csv") for name in ("conv", "code")}
    return workloads | {
        "azure_conv": traces["conv"],
        "azure_code": traces["code"],
        "conversation": replace(traces["conv"], arrival_s=None),  # arrivals are Poisson
        "vicuna": read_vicuna(data / "lengths" / "vicuna_7b_alpaca_val.json"),
    }


def print_experiment(rows: Sequence[Row]) -> None:
    """Print the rows of one experiment, then the comparisons of each row with the paper."""
    print_table(rows, COLUMNS, rows[0]["experiment"])
    for row in rows:
        for what, figure in row["paper"].items():
            click.echo(f"  {run_name(row)}: {what}: {_with_printed_range(figure)}")


def run_name(row: Row) -> str:
    """Return a run's policy, predictor, workload, rate, slice length and workers, as far as the row has them."""
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
    """Draw BATON's Fig. 5 to 7: one column of panels for each batch size, one row for each figure."""
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
