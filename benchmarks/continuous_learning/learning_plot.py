"""The picture of continuous learning: both errors over the minutes, one column a run."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

from benchmarks.continuous_learning.learning_stream import LearningHistory


def plot(histories: Mapping[str, LearningHistory], path: Path) -> None:
    """Write the picture as SVG."""
    mpl.use("svg")
    from matplotlib import pyplot  # only once the backend is chosen, because there may be no screen

    figure, panels = pyplot.subplots(
        2, len(histories), figsize=(6 * len(histories), 6), squeeze=False, constrained_layout=True
    )
    for column, (name, history) in enumerate(histories.items()):
        for row, (errors, label) in enumerate(
            ((history.length_rmse, "length RMSE, tokens"), (history.serving_rmse_s, "serving time RMSE, s"))
        ):
            panel = panels[row][column]
            panel.plot(history.minutes, errors)
            panel.set(title=name if row == 0 else "", xlabel="minute", ylabel=label, ylim=(0, None), yscale="linear")
            panel.grid(alpha=0.3)
            for refit in history.refits if row == 0 else []:
                panel.axvline(refit["minute"], color="green" if refit["published"] else "red", alpha=0.2)
    figure.savefig(path)
    pyplot.close(figure)
