"""Bars along a time axis: the queue as it should be served, what each worker served, one job's life."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 1000.0  # SVG units, which pages scale to their width
LEAST_WIDTH = 1.5  # of a bar, so that a short one is seen
ROW_HEIGHT = 18.0  # a bar and the gap below it
BAR_HEIGHT = 14.0


@dataclass(frozen=True, slots=True)
class TimeBar:
    """A bar from `x` on: its colour's class, the row that it is in, and the text shown while the pointer is over it."""

    kind: str
    x: float
    width: float
    row: int
    tooltip: str

    @property
    def y(self) -> float:
        """Its upper edge."""
        return self.row * ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT) / 2


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bars in `rows` rows of WIDTH units, with labels of the axis below."""

    bars: list[TimeBar]
    labels: list[tuple[float, str]]
    rows: int
    width: float = WIDTH
    bar_height: float = BAR_HEIGHT

    @property
    def height(self) -> float:
        """Of the rows alone."""
        return self.rows * ROW_HEIGHT


def bar(kind: str, start_s: float, end_s: float, whole_s: float, row: int, tooltip: str) -> TimeBar:
    """A bar from one instant to another of an axis that is `whole_s` long; what lies outside is cut off."""
    start, end = (min(max(at / whole_s, 0.0), 1.0) * WIDTH for at in (start_s, end_s))
    width = max(end - start, LEAST_WIDTH)
    return TimeBar(kind, min(start, WIDTH - width), width, row, tooltip)


def quarters(whole_s: float, ago: bool) -> list[tuple[float, str]]:
    """Labels at each quarter of the axis: in how many seconds, or how many seconds ago."""
    shares = (0.0, 0.25, 0.5, 0.75)
    texts = [f"{(1 - share) * whole_s:.3g} s ago" if ago else f"in {share * whole_s:.3g} s" for share in shares]
    return [(share * WIDTH, text) for share, text in zip(shares, texts, strict=True)]


def queue_timeline(batches: Sequence[tuple[int, Mapping[str, Any]]]) -> Timeline:
    """Waiting batches with their places, each where and as long as it should be served, if nothing else came."""
    whole_s = max((batch["starts_in_s"] + batch["estimated_s"] for _, batch in batches), default=0.0) or 1.0
    bars = [
        bar(
            "short" if batch["sealed"] else "good" if place == 1 else "first",
            batch["starts_in_s"],
            batch["starts_in_s"] + batch["estimated_s"],
            whole_s,
            row,
            f"#{place}: {batch['size']} × ({batch['length']} + {batch['generation_length']}) tokens, "
            f"starts in {batch['starts_in_s']:.1f} s, takes {batch['estimated_s']:.1f} s",
        )
        for row, (place, batch) in enumerate(batches)
    ]
    return Timeline(bars, quarters(whole_s, ago=False), len(bars))
