"""The table of a live comparison beside the papers' and the simulator's figures, from the runs that it recorded.

    python -m benchmarks.live.compared_runs F.json [F2.json …] --plot FILE.svg

Prints Markdown: one table for each arrival rate, with the medians of the repeats, the range of the repeats where there
are several, and the ratios to the first policy of the file. The picture has a group of bars for each rate.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from matplotlib import colormaps

from benchmarks.harness import Json, Results
from benchmarks.pictures import panels

# What the papers print, by machine and policy: on their engines, GPUs and requests, at their rates.
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
    """Describe what the runs have in common and how busy the machine was before them."""
    run = runs[0]
    pace = f"at the pace of {run['paced']}" if run["paced"] else f"{run['model']}, {run['kv_budget']} a worker"
    loads = [one["load_before"] for one in runs]
    return (
        f"{run['requests']} requests of the workload {run['workload']}, {run['workers']} workers {pace}, predictor "
        f"{run['predictor'] or 'forest'}; {len({one['repeat'] for one in runs})} repeats; commits "
        f"{', '.join(sorted({one['commit'] for one in runs}))}; load before a run {min(loads):g} to {max(loads):g}."
    )


def markdown(runs: Sequence[Json]) -> list[str]:
    """Make the lines of one table; the first policy is the one that ratios refer to."""
    names = list(dict.fromkeys(run["policy"] for run in runs))
    by_name = {name: [run for run in runs if run["policy"] == name] for name in names}
    base = by_name[names[0]]
    lines = [
        f"| policy | requests/s | × {names[0]} | to the last arrival | mean s | × {names[0]} | P99 s | valid tokens/s "
        "| valid | rows | simulated requests/s; mean s | the paper |",
        "|" + "---|" * 12,
    ]
    for name, own in by_name.items():
        per_s, mean = _median(own, "requests_per_s"), _median(own, "response_s", "mean")
        base_per_s, base_mean = _median(base, "requests_per_s"), _median(base, "response_s", "mean")
        simulated = [_median(own, "simulator", key) for key in ("requests_per_s", "mean")]
        cells = (
            f"`{name}`",
            _with_range(own, "requests_per_s", form=".2f"),
            _ratio(per_s, base_per_s),
            _shown(_median(own, "requests_per_s_to_last_arrival"), ".2f"),
            _with_range(own, "response_s", "mean", form=".1f"),
            _ratio(mean, base_mean),
            _shown(_median(own, "response_s", "p99"), ".1f"),
            _shown(_median(own, "valid_tokens_per_s"), ".0f"),
            _shown(_median(own, "valid_token_share"), ".0%"),
            _shown(_median(own, "mean_batch_size"), ".1f"),
            "–" if simulated[0] is None else f"{_shown(simulated[0], '.2f')}; {_shown(simulated[1], '.1f')}",
            _printed(own[0]["paced"], name),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *_facts(runs)]


def _printed(machine: str | None, policy: str) -> str:
    """Return what a paper prints of this policy on this machine, or on its own if the engine is not paced."""
    if policy == "sequence":
        return SEQUENCE
    of_policy = {own: text for (own, name), text in PAPERS.items() if name == policy and machine in (own, None)}
    return next(iter(of_policy.values()), "–")


def _facts(runs: Sequence[Json]) -> list[str]:
    """List what was learned before, how lengths correlate, and which CPUs and threads the workers had."""
    estimators = {run["policy"]: run["learned_before"]["serving_time_estimators"] for run in runs}
    correlation = [run["length_correlation"]["all"] for run in runs if run["length_correlation"].get("all") is not None]
    shares = [run["worker_cpu_share"] for run in runs]
    threads = sorted({f"{worker}: {number}" for run in runs for worker, number in run["threads"].items()})
    lines = [f"- estimators of serving times in service before: {', '.join(f'{k} {v}' for k, v in estimators.items())}"]
    if correlation:
        lines.append(f"- Pearson's coefficient of prompt and answer length: {statistics.median(correlation):.2f}")
    lines.append(f"- the workers' share of all cores: {min(shares):.2f} to {max(shares):.2f}")
    return [*lines, f"- threads of each worker: {', '.join(threads)}"] if threads else lines


def _values(runs: Sequence[Json], *path: str) -> list[float]:
    found = []
    for run in runs:
        value: object = run
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            found.append(float(value))
    return found


def _median(runs: Sequence[Json], *path: str) -> float | None:
    values = _values(runs, *path)
    return statistics.median(values) if values else None


def _with_range(runs: Sequence[Json], *path: str, form: str) -> str:
    values = _values(runs, *path)
    shown = _shown(_median(runs, *path), form)
    return f"{shown} ({min(values):{form}}–{max(values):{form}})" if len(values) > 1 else shown


def _ratio(value: float | None, base: float | None) -> str:
    return "–" if value is None or not base else f"{value / base:.2f}"


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def draw(runs: Sequence[Json], rates: Sequence[float], path: Path) -> None:
    """Draw throughput and mean response time of every policy, a group of bars for each rate."""
    names = list(dict.fromkeys(run["policy"] for run in runs))
    figures = {"requests a second": ("requests_per_s",), "mean response time, s": ("response_s", "mean")}
    width = 0.8 / len(names)
    with panels(path, 1, len(figures), (15, 4.5)) as made:
        for panel, (title, key) in zip(made[0], figures.items(), strict=True):
            for number, name in enumerate(names):
                own = [run for run in runs if run["policy"] == name]
                heights = [_median([run for run in own if run["rate"] == rate], *key) or 0.0 for rate in rates]
                # tab20 has a colour for each of twenty policies, the default cycle for ten
                colour = f"C{number}" if len(names) <= 10 else colormaps["tab20"](number)
                panel.bar(np.arange(len(rates)) + number * width, heights, width, label=name, color=colour)
            panel.set(title=title, xlabel="arrivals a second")
            panel.set_xticks(np.arange(len(rates)) + 0.4 - width / 2, [f"{rate:g}" for rate in rates])
            panel.grid(axis="y", alpha=0.3)
        made[0][0].legend(fontsize="small")


if __name__ == "__main__":
    main()
