"""The reliability diagram of promises: the share that was kept, upwards, over the probability, to the right."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.operations.promise_book import ERRORS, PromiseSums
from webapp.dashboard.charts.quantities import plural

SIZE, MARGIN = 300.0, 40.0  # SVG units
TICKS = (0, 25, 50, 75, 100)  # per cent


@dataclass(frozen=True, slots=True)
class Level:
    """One probability: where its point stands, and its range of two standard errors around the promise."""

    kind: str
    x: float
    y: float
    low_y: float
    high_y: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """A square from 0 to 100 % on both axes, with the labels of its grid."""

    levels: Sequence[Level]
    grid: Sequence[tuple[float, str]]
    size: float = SIZE
    margin: float = MARGIN


def reliability_diagram(sums: Sequence[PromiseSums]) -> Diagram:
    """Returns a point for each level; calibrated promises lie within their ranges on the diagonal."""
    levels = []
    for one in sums:
        low, high = (one.probability + sign * ERRORS * one.error for sign in (-1, 1))
        levels.append(
            Level(
                "c1" if one.short else "c0",
                MARGIN + _along(one.probability),
                SIZE - MARGIN - _along(one.kept_share),
                SIZE - MARGIN - _along(max(0.0, low)),
                SIZE - MARGIN - _along(min(1.0, high)),
                f"{one.probability:.0%} promised: {one.kept:,} of {plural(one.sold, 'promise')} kept",
            )
        )
    return Diagram(levels, [(_along(tick / 100), f"{tick} %") for tick in TICKS])


def _along(share: float) -> float:
    return share * (SIZE - MARGIN - 8.0)
