"""The picture of learning on real answers: one panel a figure, one line a predictor, over the answers seen."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

from benchmarks.real_lengths.learning_curve import Row

PANELS = {
    "rmse": "RMSE, tokens",
    "mae": "MAE, tokens",
    "tau": "Kendall's tau",
    "coverage": "coverage of the upper quantile",
}


def plot(curves: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Write the picture as SVG."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "real lengths"})  # the same file from the same rows
    from matplotlib import pyplot  # only once the backend is chosen, because there may be no screen

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(18, 4.5), constrained_layout=True)
    for panel, (figure_name, title) in zip(panels, PANELS.items(), strict=True):
        for name, rows in curves.items():
            panel.plot(range(len(rows)), [row[figure_name] for row in rows], marker="o", label=name)
        some = next(iter(curves.values()))
        panel.set(title=title, xlabel="answers seen", xticks=range(len(some)))
        panel.set_xticklabels([f"{row['after']:.0f}" for row in some])
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
