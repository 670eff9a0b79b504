"""The picture of continuous learning: both errors over the minutes, one column a run."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

from benchmarks.continuous_learning.learning_stream import Trail


def plot(trails: Mapping[str, Trail], path: Path) -> None:
    """Write the picture as SVG."""
    mpl.use("svg")
    from matplotlib import pyplot  # after the backend is chosen: there may be no screen

    figure, panels = pyplot.subplots(
        2, len(trails), figsize=(6 * len(trails), 6), squeeze=False, constrained_layout=True
    )
    for column, (name, trail) in enumerate(trails.items()):
        for row, (errors, label) in enumerate(
            ((trail.length_rmse, "length RMSE, tokens"), (trail.serving_rmse_s, "serving time RMSE, s"))
        ):
            panel = panels[row][column]
            panel.plot(trail.minutes, errors)
            panel.set(title=name if row == 0 else "", xlabel="minute", ylabel=label, ylim=(0, None), yscale="linear")
            panel.grid(alpha=0.3)
            for refit in trail.refits if row == 0 else []:
                panel.axvline(refit["minute"], color="green" if refit["published"] else "red", alpha=0.2)
    figure.savefig(path)
    pyplot.close(figure)
