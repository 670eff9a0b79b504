"""Predicted against true lengths as a cloud of points, a colour for each application; both axes are logarithmic."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from models.operations.application_figures import PredictedAnswer

SIZE, MARGIN = 420.0, 40.0  # SVG units of the square, and of its left and lower edge
COLOURS = 6  # applications with a colour of their own; the others share one
MOST_POINTS = 600  # more lie on each other


@dataclass(frozen=True, slots=True)
class ScatterPoint:
    """A point with its colour's class and the text shown while the pointer is over it."""

    kind: str
    x: float
    y: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """The cloud; `grid` has positions along each axis with their values."""

    points: list[ScatterPoint]
    legend: list[tuple[str, str]]  # class and application
    grid: list[tuple[float, str]]
    size: float = SIZE
    margin: float = MARGIN


def length_scatter(answers: Sequence[PredictedAnswer]) -> Scatter:
    """The newest answers; exact ones lie on the diagonal."""
    frequent = [name for name, _ in Counter(one.application for one in answers).most_common(COLOURS)]
    kinds = {name: f"c{n}" for n, name in enumerate(frequent)}
    top = max((max(one.tokens, one.predicted_tokens) for one in answers), default=1)
    decades = max(1, math.ceil(math.log10(top + 1)))

    def along(tokens: int) -> float:
        return math.log10(tokens + 1) / decades * (SIZE - MARGIN)

    points = [
        ScatterPoint(
            kinds.get(one.application, "other"),
            MARGIN + along(one.tokens),
            SIZE - MARGIN - along(one.predicted_tokens),
            f"{one.application}: {one.predicted_tokens} predicted, {one.tokens} generated",
        )
        for one in answers[:MOST_POINTS]
    ]
    others = len({one.application for one in answers}) > len(frequent)
    legend = [(kind, name) for name, kind in kinds.items()] + ([("other", "others")] if others else [])
    return Scatter(points, legend, [(along(10**n), f"{10**n:,}") for n in range(decades + 1)])
