"""Makes the table of a live comparison, beside the papers' and the simulator's figures, from its recorded runs.

    python -m benchmarks.live.compared_runs F.json [F2.json …] --plot FILE.svg

Prints Markdown: one table for each arrival rate, with the medians of the repeats, the range of the repeats where there
are several, and the ratios to the first policy of the file. The picture has a group of bars for each rate.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib import colormaps

from benchmarks.experiment import medians
from benchmarks.harness import Column, Json, Results, markdown_table
from benchmarks.pictures import panels

# The papers' results, by machine and policy, measured with their engines, GPUs, requests and rates.
PAPERS: dict[tuple[str, str], str] = {
    ("v100", "vsq"): "`magnus` serves 2.93 to 3.34 × as much",
    ("v100", "ccb"): "`magnus` serves 1.66 to 1.85 × as much",
    ("v100", "glp"): "1.36 to 1.37 × `vs` (valid tokens)",
    ("v100", "abp"): "1.43 to 1.74 × `glp`",
    ("v100", "magnus"): "1.94 to 2.38 × `vs` (`glp` × `abp`), its mean 0.10 to 0.40 ×",
    ("v100", "magnus-published"): "the same",
    ("a100", "scls"): "1.82 to 2.92 × `vs`, its mean 0.09 to 0.19 ×",
    ("a100-hf", "scls"): "3.32 to 4.16 × `vs`, its mean 0.15 to 0.18 ×",
    ("a100", "ccb"): "`scls` serves 1.62 to 2.71 × as much",
    ("a6000", "baton"): "1.86 to 2.48 × `vs` (Table 1)",
}
SEQUENCE = "1.86 × `vs`, on one A100 with Vicuna-7B"


@click.command(help=__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--plot", "plot_file", type=click.Path(path_type=Path, dir_okay=False), help="Draw the bars there.")
def main(files: tuple[Path, ...], plot_file: Path | None) -> None:
    """Print the tables and draw the picture."""
    runs = [run for file in files for run in Results.at(file).earlier() if "error" not in run]
    rates = sorted({run["rate"] for run in runs})
    for rate in rates:
        click.echo(f"\n{rate:g} requests a second arrive; {terms_of(runs)}\n")
        click.echo("\n".join(markdown([run for run in runs if run["rate"] == rate])))
    if plot_file:
        draw(runs, rates, plot_file)


def terms_of(runs: Sequence[Json]) -> str:
    """Describe the terms that the runs have in common, and how busy the machine was before them."""
    run = runs[0]
    pace = f"at the pace of {run['paced']}" if run["paced"] else f"{run['model']}, {run['kv_budget']} a worker"
    loads = [one["load_before"] for one in runs]
    return (
        f"{run['requests']} requests of the workload {run['workload']}, {run['workers']} workers {pace}, predictor "
        f"{run['predictor'] or 'forest'}; {len({one['repeat'] for one in runs})} repeats; commits "
        f"{', '.join(sorted({one['commit'] for one in runs}))}; load before a run {min(loads):g} to {max(loads):g}."
    )


def markdown(runs: Sequence[Json]) -> list[str]:
    """Return the lines of one table; its ratios are relative to the first policy."""
    rows = medians(runs, ("policy",))
    base = rows[0]
    columns: dict[str, Column] = {
        "policy": lambda row: f"`{row['policy']}`",
        "requests/s": lambda row: _with_range(runs, row["policy"], ".2f", "requests_per_s"),
        f"× {base['policy']}": lambda row: f"{row['requests_per_s'] / base['requests_per_s']:.2f}",
        "to the last arrival": "requests_per_s_to_last_arrival:.2f",
        "mean s": lambda row: _with_range(runs, row["policy"], ".1f", "response_s", "mean"),
        f"mean × {base['policy']}": lambda row: f"{row['response_s']['mean'] / base['response_s']['mean']:.2f}",
        "P50 s": "response_s.p50:.1f",
        "P99 s": "response_s.p99:.1f",
        "valid tokens/s": "valid_tokens_per_s:.0f",
        "valid": "valid_token_share:.0%",
        "rows": "mean_batch_size:.1f",
        "simulated requests/s": "simulator.requests_per_s:.2f",
        "mean": "simulator.mean:.1f",
        "the paper": lambda row: _printed(runs[0]["paced"], row["policy"]),
    }
    return [*markdown_table(rows, columns), "", *_facts(runs)]


def _printed(machine: str | None, policy: str) -> str:
    """Return a paper's result for this policy on this machine, or on any if the engine is not paced (None)."""
    if policy == "sequence":
        return SEQUENCE
    of_policy = {own: text for (own, name), text in PAPERS.items() if name == policy and machine in (own, None)}
    return next(iter(of_policy.values()), "–")


def _facts(runs: Sequence[Json]) -> list[str]:
    """List the estimators learned before, the correlation of lengths, and the workers' CPU shares and threads."""
    estimators = {run["policy"]: run["learned_before"]["serving_time_estimators"] for run in runs}
    correlation = [run["length_correlation"]["all"] for run in runs if run["length_correlation"].get("all") is not None]
    shares = [run["worker_cpu_share"] for run in runs]
    threads = sorted({f"{worker}: {number}" for run in runs for worker, number in run["threads"].items()})
    lines = [f"- estimators of serving times in service before: {', '.join(f'{k} {v}' for k, v in estimators.items())}"]
    if correlation:
        lines.append(f"- Pearson's coefficient of prompt and answer length: {statistics.median(correlation):.2f}")
    lines.append(f"- the workers' share of all cores: {min(shares):.2f} to {max(shares):.2f}")
    return [*lines, f"- threads of each worker: {', '.join(threads)}"] if threads else lines


def _with_range(runs: Sequence[Json], policy: str, form: str, *path: str) -> str:
    """Return the median of a policy's repeats, with their range where there are several."""
    values = [_at(run, path) for run in runs if run["policy"] == policy]
    shown = f"{statistics.median(values):{form}}"
    return f"{shown} ({min(values):{form}}–{max(values):{form}})" if len(values) > 1 else shown


def _at(run: Json, path: Sequence[str]) -> float:
    """Return the figure at this path of keys."""
    value: Any = run
    for key in path:
        value = value[key]
    return float(value)


def draw(runs: Sequence[Json], rates: Sequence[float], path: Path) -> None:
    """Draw throughput and mean response time of every policy, a group of bars for each rate."""
    names = list(dict.fromkeys(run["policy"] for run in runs))
    figures = {"requests a second": ("requests_per_s",), "mean response time, s": ("response_s", "mean")}
    width = 0.8 / len(names)
    with panels(path, 1, len(figures), (15, 4.5)) as made:
        for panel, (title, key) in zip(made[0], figures.items(), strict=True):
            for number, name in enumerate(names):
                of_rate = {row["rate"]: row for row in medians(runs, ("policy", "rate")) if row["policy"] == name}
                heights = [_at(of_rate[rate], key) if rate in of_rate else 0.0 for rate in rates]
                # The default cycle has ten colours, tab20 has twenty.
                colour = f"C{number}" if len(names) <= 10 else colormaps["tab20"](number)
                panel.bar(np.arange(len(rates)) + number * width, heights, width, label=name, color=colour)
            panel.set(title=title, xlabel="arrivals a second")
            panel.set_xticks(np.arange(len(rates)) + 0.4 - width / 2, [f"{rate:g}" for rate in rates])
            panel.grid(axis="y", alpha=0.3)
        made[0][0].legend(fontsize="small")


if __name__ == "__main__":
    main()
