"""The charts of the pages: which quantity each shows over time, and predicted against true lengths as points."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt

from models.operations.application_figures import PredictedAnswer
from models.operations.service_history import HistoryPoint
from webapp.dashboard.charts.quantities import plural
from webapp.dashboard.charts.time_charts import Chart, Series, Slot, bar_chart, line_chart


@dataclass(frozen=True, slots=True)
class ChartRange:
    """How far charts reach back, and the length of one step, in seconds."""

    name: str
    back_s: int
    step_s: int


# The ranges by the word in the address. A step is a whole number of samples (10 s) or, from a minute on, of minutes.
RANGES = {
    "15m": ChartRange("15 minutes", 900, 10),
    "6h": ChartRange("6 hours", 6 * 3600, 300),
    "7d": ChartRange("7 days", 7 * 86_400, 2 * 3600),
}
SHORTEST = "15m"


def service_charts(slots: Sequence[Slot]) -> list[Chart]:
    """Returns the overview's charts: queue, age, failures, requests and tokens a second, response times."""
    draw = partial(line_chart, slots)
    return [
        draw(
            "Backlog and in flight",
            "Requests that wait, and requests in batches; the maximum of each step.",
            [Series("first", "waiting", lambda p: p.backlog), Series("second", "in flight", lambda p: p.in_flight)],
        ),
        draw(
            "Oldest waiting, seconds",
            "Age of the request that has waited longest.",
            [Series("first", "oldest", lambda p: None if p.backlog is None else p.oldest_s or 0.0)],
        ),
        bar_chart(
            slots,
            "Failed requests",
            "Requests that failed in each step.",
            Series("bad", "failed", lambda p: p.failed),
            "No request failed",
        ),
        draw(
            "Requests a second",
            "Answers that ended, complete or cut off at their limit.",
            [Series("first", "answers / s", lambda p: p.answers / p.seconds)],
        ),
        draw(
            "Valid tokens a second",
            "Tokens of answers, without the padding and invalid tokens of batches.",
            [Series("first", "tokens / s", lambda p: p.answer_tokens / p.seconds)],
        ),
        draw(
            "Response time, seconds",
            "From arrival to the end of the answer; the maximum of each step.",
            [
                Series("first", "P50", lambda p: p.response_p50_s),
                Series("second", "P95", lambda p: p.response_p95_s),
                Series("third", "P99", lambda p: p.response_p99_s),
            ],
        ),
    ]


def prediction_charts(slots: Sequence[Slot]) -> list[Chart]:
    """Returns the charts of the errors of predicted lengths, of ETAs and of estimated serving times."""
    draw = partial(line_chart, slots)
    return [
        draw(
            "Error of lengths, tokens (RMSE)",
            "Root of the mean squared difference between predicted and true length of complete answers.",
            [Series("first", "RMSE", lambda p: _root(p.squared_error, p.predicted))],
        ),
        draw(
            "Order of lengths (Kendall's tau)",
            "1: every pair of answers was predicted in the right order; 0: no better than chance.",
            [Series("first", "tau", lambda p: p.tau)],
            top=1.0,
        ),
        draw(
            "Coverage",
            "Share of complete answers no longer than the upper quantile, and of answers within the interval of their "
            "ETA. The target of both is 0.9.",
            [
                Series("first", "lengths", _share_of(lambda p: p.covered, lambda p: p.predicted)),
                Series("second", "ETAs", _share_of(lambda p: p.eta_kept, lambda p: p.promised)),
            ],
            top=1.0,
        ),
        draw(
            "Error of ETAs, seconds",
            "Mean difference between the ETA given at submission and the time of the answer.",
            [Series("first", "ETA", _share_of(lambda p: p.eta_error_s, lambda p: p.promised))],
        ),
        draw(
            "Error of serving times, share",
            "Sum of the differences between estimated and true serving times, divided by the true ones.",
            [Series("first", "seconds", _share_of(lambda p: p.estimate_error_s, lambda p: p.served_s))],
        ),
    ]


def _root(total: float | None, count: int | None) -> float | None:
    return sqrt(total / count) if total is not None and count else None


def _share_of(
    part: Callable[[HistoryPoint], float | None], whole: Callable[[HistoryPoint], float | None]
) -> Callable[[HistoryPoint], float | None]:
    def share(point: HistoryPoint) -> float | None:
        all_of_it, some = whole(point), part(point)
        return None if not all_of_it or some is None else some / all_of_it

    return share


SIZE, MARGIN = 420.0, 40.0  # SVG units: the side of the square, and its left and lower margin
SMALLEST, LARGEST = 3.0, 14.0  # radius of a point that stands for one answer, and of that with the most answers
COLOURS = 6  # applications with a colour of their own; the others share one
MOST_ANSWERS = 2000  # a page with more points would be slow
TICKS = [0, *(digit * 10**power for power in range(8) for digit in (1, 2, 5))]  # tokens
MOST_TICKS = 8  # more labels than this would touch each other


@dataclass(frozen=True, slots=True)
class ScatterPoint:
    """A point with the CSS class of its colour, its radius, and the text shown under the pointer."""

    kind: str
    x: float
    y: float
    radius: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """Points of predicted against true lengths; `grid` pairs positions along each axis with their values."""

    points: list[ScatterPoint]
    legend: list[tuple[str, str]]  # CSS class of the points, and their application
    grid: list[tuple[float, str]]
    answers: int
    size: float = SIZE
    margin: float = MARGIN


def length_scatter(answers: Sequence[PredictedAnswer], names: Mapping[str, str]) -> Scatter:
    """Returns a point for each pair of true and predicted length, the larger the more of the newest answers have them.

    The axes are logarithmic; exact predictions lie on the diagonal. `names` has each application's name.
    """
    answers = answers[:MOST_ANSWERS]
    frequent = [name for name, _ in Counter(one.application for one in answers).most_common(COLOURS)]
    kinds = {name: f"c{n}" for n, name in enumerate(frequent)}
    lengths = [length for one in answers for length in (one.tokens, one.predicted_tokens)] or [1]
    ticks = _ticks(min(lengths), max(lengths))
    low, high = math.log10(ticks[0] + 1), math.log10(ticks[-1] + 1)

    def along(tokens: int) -> float:
        return LARGEST + (math.log10(tokens + 1) - low) / (high - low) * (SIZE - MARGIN - 2 * LARGEST)

    places = Counter((one.application, one.tokens, one.predicted_tokens) for one in answers).most_common()
    most = places[0][1] if places else 1
    points = [
        ScatterPoint(
            kinds.get(application, "other"),
            MARGIN + along(tokens),
            SIZE - MARGIN - along(predicted),
            SMALLEST + (LARGEST - SMALLEST) * sqrt((count - 1) / max(1, most - 1)),
            f"{names[application]}: {predicted} predicted, {tokens} generated, {plural(count, 'answer')}",
        )
        for (application, tokens, predicted), count in places  # the largest first, so that none hides a smaller one
    ]
    others = len({one.application for one in answers}) > len(frequent)
    legend = [(kind, names[name]) for name, kind in kinds.items()] + ([("other", "others")] if others else [])
    return Scatter(points, legend, [(along(tick), f"{tick:,}") for tick in ticks], len(answers))


def _ticks(shortest: int, longest: int) -> list[int]:
    """Returns the labels of an axis from the shortest to the longest length; at least two."""
    first = max(n for n, tick in enumerate(TICKS) if tick <= shortest)
    last = min(n for n, tick in enumerate(TICKS) if tick >= longest)
    if first == last:
        first, last = max(0, first - 1), last + 1
    ticks = TICKS[first : last + 1]
    if len(ticks) <= MOST_TICKS:
        return ticks
    return [tick for tick in ticks if str(tick)[0] == "1" or tick in (ticks[0], ticks[-1])]
