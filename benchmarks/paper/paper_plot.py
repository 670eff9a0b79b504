"""Pictures of the rows of `benchmarks.paper`: throughput and response time over the rate, one line for each policy."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from benchmarks.paper.simulation_runs import Row


def plot(rows: Sequence[Row], directory: Path) -> None:
    """One picture for each experiment and workload that has more than one rate."""
    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "paper"}
    )  # small files, and the same file from the same rows
    from matplotlib import pyplot  # after the backend is chosen, since there may be no screen

    directory.mkdir(parents=True, exist_ok=True)
    for name, workload in sorted({(row["experiment"], row["workload"]) for row in rows if row["rate"]}):
        chosen = [row for row in rows if (row["experiment"], row["workload"]) == (name, workload)]
        if len({row["rate"] for row in chosen}) < 2:
            continue
        figure, panels = pyplot.subplots(1, 3, figsize=(15, 4.5), constrained_layout=True)
        titles = ("requests a second", "mean response time, s", "P99 response time, s")
        for panel, title in zip(panels, titles, strict=True):
            panel.set(title=title, xlabel="arrivals a second")
            panel.grid(alpha=0.3)
        for label in dict.fromkeys(_label(row) for row in chosen):
            line = sorted((row for row in chosen if _label(row) == label), key=lambda row: float(row["rate"]))
            rates = [row["rate"] for row in line]
            panels[0].plot(rates, [row["requests_per_s"] for row in line], marker="o", label=label)
            panels[1].plot(rates, [row["response_s"]["mean"] for row in line], marker="o")
            panels[2].plot(rates, [row["response_s"]["p99"] for row in line], marker="o")
        for panel in panels[1:]:
            panel.set_yscale("log")
        panels[0].legend(fontsize="small")
        file = f"{name} {workload}".replace(",", "").replace(" ", "-")
        figure.savefig(directory / f"{file}.svg", metadata={"Date": None})
        pyplot.close(figure)


def _label(row: Row) -> str:
    return f"{row['policy']}, {row['predictor']}" if row["predictor"] not in ("", "none") else str(row["policy"])
