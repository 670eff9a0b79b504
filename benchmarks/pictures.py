"""Draws the benchmarks' pictures as SVG; the same rows always give the same file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.harness import Json


@contextmanager
def panels(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Yield an array [rows, columns] of empty panels, and write the picture at the end; `size` is in inches."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "magnus"})
    from matplotlib import pyplot  # imported once the backend is set: there may be no screen

    figure, made = pyplot.subplots(rows, columns, figsize=size, squeeze=False, constrained_layout=True)
    yield made
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Date": None})
    pyplot.close(figure)


def plot_over_rate(runs: Sequence[Json], label: Callable[[Json], str], path: Path, *, logarithmic: bool) -> None:
    """Draw throughput, mean and P99 response time over the arrival rate, as means of the repeats."""
    figures: dict[str, Callable[[Json], float]] = {
        "requests a second": lambda run: run["requests_per_s"],
        "mean response time, s": lambda run: run["response_s"]["mean"],
        "P99 response time, s": lambda run: run["response_s"]["p99"],
    }
    with panels(path, 1, len(figures), (15, 4.5)) as made:
        for number, (panel, (title, figure)) in enumerate(zip(made[0], figures.items(), strict=True)):
            for name in dict.fromkeys(map(label, runs)):
                own = [run for run in runs if label(run) == name]
                rates = sorted({run["rate"] for run in own})
                means = [float(np.mean([figure(run) for run in own if run["rate"] == rate])) for rate in rates]
                panel.plot(rates, means, marker="o", label=name)
            panel.set(title=title, xlabel="arrivals a second", yscale="log" if number and logarithmic else "linear")
            panel.grid(alpha=0.3)
        made[0][0].legend(fontsize="small")
