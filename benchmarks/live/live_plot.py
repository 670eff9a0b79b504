"""Throughput and response time over the arrival rate, one line for each policy."""

from pathlib import Path

import matplotlib as mpl

from cli.api_client import Json


def plot(runs: list[Json], directory: Path) -> None:
    """Write live.svg; repeats of a policy at a rate become their mean."""
    mpl.use("svg")
    from matplotlib import pyplot  # after the backend is chosen, since there may be no screen

    figure, panels = pyplot.subplots(1, 3, figsize=(15, 4.5), constrained_layout=True)
    titles = ("requests a second", "mean response time, s", "P99 response time, s")
    for panel, title in zip(panels, titles, strict=True):
        panel.set(title=title, xlabel="arrivals a second")
        panel.grid(alpha=0.3)
    for policy in dict.fromkeys(run["policy"] for run in runs):
        by_rate: dict[float, list[Json]] = {}
        for run in runs:
            if run["policy"] == policy:
                by_rate.setdefault(run["rate"], []).append(run)
        rates = sorted(by_rate)
        lines = (
            [_mean([run["requests_per_s"] for run in by_rate[rate]]) for rate in rates],
            [_mean([run["response_s"]["mean"] for run in by_rate[rate]]) for rate in rates],
            [_mean([run["response_s"]["p99"] for run in by_rate[rate]]) for rate in rates],
        )
        for panel, line in zip(panels, lines, strict=True):
            panel.plot(rates, line, marker="o", label=policy)
    panels[0].legend()
    directory.mkdir(parents=True, exist_ok=True)
    figure.savefig(directory / "live.svg")
    pyplot.close(figure)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
