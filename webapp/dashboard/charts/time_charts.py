"""Charts over time: the coordinates of their bars, lines and labels, which templates draw as SVG without a script."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter

from models.operations.service_history import HistoryPoint

WIDTH, HEIGHT = 420.0, 140.0  # SVG units; pages scale a chart to its column, so that only the ratio matters
LEFT, RIGHT, TOP, BOTTOM = 36.0, 2.0, 8.0, 20.0  # margins, wide enough for the labels of values and clock times
BAR_SHARE = 0.8  # share of a slot's width that its bar takes; the rest is the gap to the next bar. Not tuned


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity: the CSS class that colours it, its name, and its value at a point (None: no data)."""

    kind: str
    name: str
    value: Callable[[HistoryPoint], float | None]


@dataclass(frozen=True, slots=True)
class Slot:
    """A step of the time axis, with its point if there are data."""

    start: datetime
    point: HistoryPoint | None

    def value(self, series: Series) -> float | None:
        """Returns the series' value at this slot."""
        return None if self.point is None else series.value(self.point)


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle with the text that is shown while the pointer is over it."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A polyline's points in SVG's notation; `lone`: it is a single point; `bridge`: it spans steps without a value."""

    kind: str
    points: str
    lone: bool = False
    bridge: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of WIDTH by HEIGHT units; `grid` pairs y positions with values, `times` x positions with clock times."""

    title: str
    description: str
    colours: list[tuple[str, str]]  # the CSS class of each series, and its name
    bars: list[Bar]
    lines: list[ChartLine]
    grid: list[tuple[float, str]]
    times: list[tuple[float, str]]
    empty: bool
    nothing: str = ""  # a text shown instead of the bars if all of them are zero
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT


def colours_of(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Returns the CSS class of each series, and its name."""
    return [(one.kind, one.name) for one in series]


def time_slots(points: Sequence[HistoryPoint], now: datetime, back_s: int, step_s: int) -> list[Slot]:
    """Returns the last `back_s` as equal steps, including the one that has just begun; steps without data are empty."""
    by_start = {int(point.at.timestamp()) // step_s: point for point in points}
    last = int(now.timestamp()) // step_s
    numbers = range(last - back_s // step_s + 1, last + 1)
    return [Slot(datetime.fromtimestamp(n * step_s, UTC), by_start.get(n)) for n in numbers]


def bar_chart(slots: Sequence[Slot], title: str, description: str, series: Series, nothing: str) -> Chart:
    """Returns a bar for each step; that of zero is invisible, and a chart of zeros says `nothing` instead."""
    values = [slot.value(series) or 0.0 for slot in slots]
    top, grid = axis_scale(max(values, default=0.0))
    bars = []
    for slot, value, x in zip(slots, values, bar_positions(len(slots)), strict=True):
        if slot.point is not None:
            kind, y = (series.kind, height_of(value, top)) if value else ("hover", TOP)
            tooltip = f"{clock(slot.start)}: {short_number(value)} {series.name}"
            bars.append(Bar(kind, x, y, bar_width(len(slots)), HEIGHT - BOTTOM - y, tooltip))
    said = "" if any(values) else nothing
    return Chart(title, description, colours_of([series]), bars, [], grid, time_labels(slots), not bars, said)


def line_chart(
    slots: Sequence[Slot], title: str, description: str, series: Sequence[Series], top: float | None = None
) -> Chart:
    """Returns a line for each series and invisible bars with tooltips; `top` is the axis's maximum.

    A line breaks where there is no point; a bridge joins its ends where a point has no value.
    """
    values = [[slot.value(one) for one in series] for slot in slots]
    highest = max((value for column in values for value in column if value is not None), default=0.0)
    top, grid = axis_scale(highest if top is None else top)
    middles = [x + bar_width(len(slots)) / 2 for x in bar_positions(len(slots))]
    sampled = [slot.point is not None for slot in slots]
    lines = [
        line
        for n, one in reversed(list(enumerate(series)))
        for line in _lines(one.kind, list(zip(middles, [column[n] for column in values], sampled, strict=True)), top)
    ]
    bars = []
    for slot, column, x in zip(slots, values, bar_positions(len(slots)), strict=True):
        texts = [f"{one.name} {short_number(v)}" for one, v in zip(series, column, strict=True) if v is not None]
        if texts:
            tooltip = f"{clock(slot.start)}: {', '.join(texts)}"
            bars.append(Bar("hover", x, TOP, bar_width(len(slots)), HEIGHT - TOP - BOTTOM, tooltip))
    return Chart(title, description, colours_of(series), bars, lines, grid, time_labels(slots), not lines)


def _lines(kind: str, points: Sequence[tuple[float, float | None, bool]], top: float) -> list[ChartLine]:
    """Returns a series' bridges and lines; a point is its x, its value, and whether there is a sample at all."""

    def drawn(run: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{height_of(value, top):.1f}" for x, value in run)

    lines = []
    for sampled, points_there in groupby(points, key=itemgetter(2)):
        stretch = list(points_there)
        run = [(x, value) for x, value, _ in stretch if value is not None]
        if sampled and 1 < len(run) < len(stretch):
            lines.append(ChartLine(kind, drawn(run), bridge=True))
    runs = split_at_gaps([(x, value) for x, value, _ in points])
    return lines + [ChartLine(kind, drawn(run), lone=run[0] == run[-1]) for run in runs]


def split_at_gaps(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Returns the stretches between gaps; a lone point is given twice, so that its round end is drawn."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((x, value))
    return [run * 2 if len(run) == 1 else run for run in runs if run]


def axis_scale(highest: float) -> tuple[float, list[tuple[float, str]]]:
    """Returns the axis's maximum, a round number not far above `highest`, and the grid below it."""
    if highest <= 0:
        return 1.0, [(height_of(0.0, 1.0), "0")]
    power = 10.0 ** math.floor(math.log10(highest))
    top = next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if power * step >= highest)
    return top, [(height_of(top * share, top), short_number(top * share)) for share in (0.0, 0.5, 1.0)]


def height_of(value: float, top: float) -> float:
    """Returns the y coordinate of a value; `top` is the axis's maximum."""
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def bar_positions(count: int) -> list[float]:
    """Returns the left edges of `count` bars."""
    step = (WIDTH - LEFT - RIGHT) / max(count, 1)
    return [LEFT + step * n for n in range(count)]


def bar_width(count: int) -> float:
    """Returns the width of one of `count` bars."""
    return (WIDTH - LEFT - RIGHT) / max(count, 1) * BAR_SHARE


def time_labels(slots: Sequence[Slot]) -> list[tuple[float, str]]:
    """Returns clock times at every quarter of the axis, or days if it spans several."""
    quarter = max(1, len(slots) // 4)
    days = len(slots) > 1 and slots[-1].start - slots[0].start > timedelta(days=2)
    at = [(x, slot.start) for x, slot in list(zip(bar_positions(len(slots)), slots, strict=True))[::quarter]]
    return [(x, f"{start:%d %b}" if days else f"{start:%H:%M}") for x, start in at if x < WIDTH - LEFT]


def clock(at: datetime) -> str:
    """Returns day, hours and minutes in UTC, with seconds if they are not zero."""
    return f"{at:%d %b %H:%M}" + (f":{at:%S}" if at.second else "")


def short_number(value: float) -> str:
    """Returns a number in a form short enough for an axis."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
