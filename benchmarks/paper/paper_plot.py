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
    _plot_over_time([row for row in rows if "instants_s" in row], directory)
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


def _plot_over_time(rows: Sequence[Row], directory: Path) -> None:
    """BATON's Fig. 5 to 7: one column a batch size, one row a figure."""
    from matplotlib import pyplot  # after the backend is chosen, since there may be no screen

    if not rows:
        return
    batches = sorted({row["batch"] for row in rows})
    figures = {"completed": "completed queries", "generated_tokens": "tokens", "cached_tokens": "cached tokens"}
    figure, panels = pyplot.subplots(
        len(figures), len(batches), figsize=(3.6 * len(batches), 8), squeeze=False, constrained_layout=True
    )
    for column, batch in enumerate(batches):
        for panel, (name, title) in zip(panels[:, column], figures.items(), strict=True):
            for row in rows:
                if row["batch"] == batch:
                    panel.plot(row["instants_s"], row[name], label=row["policy"])
            panel.set(title=f"batches of {batch}" if name == "completed" else "", xlabel="s", ylabel=title)
            panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize="small")
    figure.savefig(directory / "baton-fig-5-6-7.svg", metadata={"Date": None})
    pyplot.close(figure)


def _label(row: Row) -> str:
    return f"{row['policy']}, {row['predictor']}" if row["predictor"] not in ("", "none") else str(row["policy"])
