"""Small charts as numbers: where bars, lines and labels stand in an SVG. Templates draw them; no script does."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from models.tables import Minute

WIDTH, HEIGHT = 420.0, 140.0
LEFT, RIGHT, TOP, BOTTOM = 36.0, 2.0, 8.0, 20.0
MOST_BARS = 60


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity: the CSS class that colours it, its name, how to take it from some minutes (None: nothing there)."""

    kind: str
    name: str
    of: Callable[[Sequence[Minute]], float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle with what a pointer over it reads."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    says: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """The points of a polyline as SVG writes them; a gap in the data begins a new line."""

    kind: str
    points: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of WIDTH by HEIGHT units; `grid` has heights and their values, `times` places and their clock times."""

    title: str
    explains: str
    legend: list[Series]
    bars: list[Bar]
    lines: list[ChartLine]
    grid: list[tuple[float, str]]
    times: list[tuple[float, str]]
    empty: bool
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT


@dataclass(frozen=True, slots=True)
class Bucket:
    """Minutes that share one place on the time axis."""

    start: datetime
    minutes: list[Minute]


def buckets(minutes: Sequence[Minute], now: datetime, back: timedelta) -> list[Bucket]:
    """The last `back` in at most MOST_BARS equal steps of whole minutes; steps without minutes stay empty."""
    step = timedelta(minutes=max(1, math.ceil(back / timedelta(minutes=1) / MOST_BARS)))
    end = now.replace(second=0, microsecond=0)
    found = [Bucket(end - step * n, []) for n in range(math.ceil(back / step), 0, -1)]
    for minute in minutes:
        place = len(found) - math.ceil((end - minute.minute) / step)
        if 0 <= place < len(found):
            found[place].minutes.append(minute)
    return found


def stacked(title: str, explains: str, series: Sequence[Series], found: Sequence[Bucket]) -> Chart:
    """Bars on top of each other, the first series at the bottom."""
    values = [[one.of(bucket.minutes) or 0.0 for one in series] for bucket in found]
    top, grid = scale(max((sum(column) for column in values), default=0.0))
    bars = []
    for bucket, column, x in zip(found, values, places(len(found)), strict=True):
        below = 0.0
        for one, value in zip(series, column, strict=True):
            if value > 0:
                y = height_of(below + value, top)
                says = f"{clock(bucket.start)}: {number(value)} {one.name}"
                bars.append(Bar(one.kind, x, y, bar_width(len(found)), height_of(below, top) - y, says))
            below += value
    return Chart(title, explains, list(series), bars, [], grid, times(found), not bars)


def lined(title: str, explains: str, series: Sequence[Series], found: Sequence[Bucket]) -> Chart:
    """A line for each series, over invisible bars that say the values."""
    values = [[one.of(bucket.minutes) for one in series] for bucket in found]
    top, grid = scale(max((value for column in values for value in column if value is not None), default=0.0))
    middles = [x + bar_width(len(found)) / 2 for x in places(len(found))]
    lines = [
        ChartLine(one.kind, " ".join(f"{x:.1f},{height_of(value, top):.1f}" for x, value in run))
        for n, one in enumerate(series)
        for run in runs([(x, column[n]) for x, column in zip(middles, values, strict=True)])
    ]
    bars = []
    for bucket, column, x in zip(found, values, places(len(found)), strict=True):
        said = [f"{one.name} {number(v)}" for one, v in zip(series, column, strict=True) if v is not None]
        if said:
            says = f"{clock(bucket.start)}: {', '.join(said)}"
            bars.append(Bar("hover", x, TOP, bar_width(len(found)), HEIGHT - TOP - BOTTOM, says))
    return Chart(title, explains, list(series), bars, lines, grid, times(found), not lines)


def runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Stretches without a gap; a lone point is drawn twice, so that its round end shows."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, value in points:
        if value is None:
            found.append([])
        else:
            found[-1].append((x, value))
    return [run * 2 if len(run) == 1 else run for run in found if run]


def scale(highest: float) -> tuple[float, list[tuple[float, str]]]:
    """The value at the top, a round number not far above the highest, and the grid below it."""
    if highest <= 0:
        return 1.0, []
    power = 10.0 ** math.floor(math.log10(highest))
    top = next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if power * step >= highest)
    return top, [(height_of(top * share, top), number(top * share)) for share in (0.0, 0.5, 1.0)]


def height_of(value: float, top: float) -> float:
    """Where a value stands between the bottom and the top line."""
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def places(count: int) -> list[float]:
    """The left edges of so many bars."""
    step = (WIDTH - LEFT - RIGHT) / max(count, 1)
    return [LEFT + step * n for n in range(count)]


def bar_width(count: int) -> float:
    """The width of one of so many bars, with a little air."""
    return (WIDTH - LEFT - RIGHT) / max(count, 1) * 0.8


def times(found: Sequence[Bucket]) -> list[tuple[float, str]]:
    """Clock times at every quarter of the axis."""
    quarter = max(1, len(found) // 4)
    return [(x, clock(bucket.start)) for x, bucket in list(zip(places(len(found)), found, strict=True))[::quarter]]


def clock(at: datetime) -> str:
    """Hours and minutes, UTC."""
    return f"{at:%H:%M}"


def number(value: float) -> str:
    """A number short enough for an axis."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
