"""Bars along a time axis: the expected order of the queue, the batches of each worker, the life of one job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from models.client_requests import RequestView
from models.operations.fleet_use import BatchSpan
from models.planning.queue_snapshot import BatchInQueue
from webapp.dashboard.charts.quantities import duration

WIDTH = 1000.0  # SVG units, which pages scale to their width
LEAST_WIDTH = 1.5  # units of the narrowest bar, so that it can be seen
ROW_HEIGHT = 18.0  # a bar and the gap below it
BAR_HEIGHT = 14.0


@dataclass(frozen=True, slots=True)
class TimeBar:
    """A bar that begins at `x`, with the CSS class of its colour, its row, and the text shown under the pointer."""

    kind: str
    x: float
    width: float
    row: int
    tooltip: str

    @property
    def y(self) -> float:
        """The y coordinate of its upper edge."""
        return self.row * ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT) / 2


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bars in `rows` rows of WIDTH units, with the labels of the axis and the meaning of the colours below them."""

    bars: list[TimeBar]
    labels: list[str]
    rows: int
    legend: list[tuple[str, str]]  # CSS class of the bars, and what they show
    width: float = WIDTH
    bar_height: float = BAR_HEIGHT

    @property
    def height(self) -> float:
        """The height of the rows, without the labels."""
        return self.rows * ROW_HEIGHT


def bar(kind: str, start_s: float, end_s: float, whole_s: float, row: int, tooltip: str) -> TimeBar:
    """Returns a bar between two instants of an axis of `whole_s` seconds, cut off at the axis's ends."""
    start, end = (min(max(at / whole_s, 0.0), 1.0) * WIDTH for at in (start_s, end_s))
    width = max(end - start, LEAST_WIDTH)
    return TimeBar(kind, min(start, WIDTH - width), width, row, tooltip)


def quarters(whole_s: float, label: str, first: float = 0.0, last: float = 1.0) -> list[str]:
    """Returns the label with the time of each quarter of an axis between two shares of `whole_s`."""
    shares = (first + n / 4 * (last - first) for n in range(4))
    return [label.format(duration(share * whole_s)) for share in shares]


def legend_of(bars: Iterable[TimeBar], names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the colours that the bars have, with their names, in the order of the names."""
    kinds = {one.kind for one in bars}
    return [(kind, name) for kind, name in names.items() if kind in kinds]


QUEUE_COLOURS = {"good": "next", "later": "later", "short": "half of a batch that ran out of memory"}


def queue_timeline(batches: Sequence[tuple[int, BatchInQueue]]) -> Timeline:
    """Returns a bar for each waiting batch, from its expected start to its expected end if no request arrives."""
    whole_s = max((batch.starts_in_s + batch.estimated_s for _, batch in batches), default=0.0) or 1.0
    bars = [
        bar(
            "short" if batch.sealed else "good" if place == 1 else "later",
            batch.starts_in_s,
            batch.starts_in_s + batch.estimated_s,
            whole_s,
            row,
            f"#{place}: {batch.size} × ({batch.length} + {batch.generation_length}) tokens, "
            f"starts in {batch.starts_in_s:.1f} s, takes {batch.estimated_s:.1f} s",
        )
        for row, (place, batch) in enumerate(batches)
    ]
    return Timeline(bars, quarters(whole_s, "in {}"), len(bars), legend_of(bars, QUEUE_COLOURS))


def job_life(view: RequestView) -> Timeline:
    """Returns bars for the times of waiting, sending and serving, from arrival until the end or until now."""
    request, batch = view.request, view.batch
    end = request.finished_at or view.now
    whole_s = max((end - request.arrived_at).total_seconds(), 1e-3)
    assigned = _within(batch.assigned_at if batch else None, request.arrived_at, end)
    started = _within(request.started_at or (batch.started_at if batch else None), assigned or request.arrived_at, end)
    marks = [
        ("short", "waited for a batch", request.arrived_at, assigned or started or end),
        ("none", "on its way to its worker", assigned, started or (end if assigned else None)),
        ("good", "served", started, end if started else None),
    ]
    bars = [
        bar(
            kind,
            (first - request.arrived_at).total_seconds(),
            (last - request.arrived_at).total_seconds(),
            whole_s,
            0,
            f"{name} for {duration((last - first).total_seconds())}",
        )
        for kind, name, first, last in marks
        if first is not None and last is not None
    ]
    lasted = {one.kind: one.tooltip for one in bars}
    return Timeline(bars, quarters(whole_s, "{} after arrival"), 1, legend_of(bars, lasted))


def _within(at: datetime | None, first: datetime, last: datetime) -> datetime | None:
    """Returns the instant clamped to both bounds, because only the last batch of a job that ran twice is known."""
    return None if at is None else min(max(at, first), last)


# More batches than this are drawn merged into busy times, because each bar would be narrower than a pixel.
MOST_BARS = 200
KINDS = {"finished": "good", "running": "running", "out_of_memory": "bad", "lost": "bad"}
WORKER_COLOURS = {"good": "finished", "running": "running", "bad": "ran out of memory, or lost", "none": "other"}


@dataclass(frozen=True, slots=True)
class WorkerStrip:
    """The timeline of a worker, and figures of the time that it shows; they are None if it shows no time."""

    timeline: Timeline
    idle_share: float | None
    tokens_per_s: float | None


def worker_strip(batches: Sequence[BatchSpan], now: datetime, back_s: float, up_s: float) -> WorkerStrip:
    """Returns the strip of one worker's batches over the last `back_s`; its process was started `up_s` ago."""
    spans = [(*_span(batch, now, back_s), batch) for batch in batches]
    busy = merged([(start, end) for start, end, _ in spans])
    if len(spans) > MOST_BARS:
        bars = [bar("good", start, end, back_s, 0, "serving") for start, end in busy]
    else:
        bars = [_bar_of(start, end, batch, back_s) for start, end, batch in reversed(spans)]
    # the batches before the start of this process were an earlier process's
    shown_s = min(back_s, max([up_s, *(back_s - start for start, _ in busy)]))
    busy_s = sum(end - start for start, end in busy)
    return WorkerStrip(
        Timeline(bars, quarters(back_s, "{} ago", 1.0, 0.0), 1, legend_of(bars, WORKER_COLOURS)),
        idle_share=min(1.0, max(0.0, 1 - busy_s / shown_s)) if shown_s > 0 else None,
        tokens_per_s=sum(batch.valid_tokens for batch in batches) / shown_s if shown_s > 0 else None,
    )


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the union of the spans as spans that do not touch, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _span(batch: BatchSpan, now: datetime, back_s: float) -> tuple[float, float]:
    """Returns the batch's start and end as seconds on the axis."""
    start_s = back_s - (now - batch.started_at).total_seconds()
    end_s = back_s if batch.finished_at is None else back_s - (now - batch.finished_at).total_seconds()
    return max(0.0, start_s), max(0.0, start_s, end_s)


def _bar_of(start_s: float, end_s: float, batch: BatchSpan, back_s: float) -> TimeBar:
    what = "rows that joined" if batch.joins else "batch"
    text = f"{what} #{batch.id} of {batch.size}: {batch.status.replace('_', ' ')}, {end_s - start_s:.1f} s"
    return bar(
        KINDS.get(batch.status, "none"), start_s, end_s, back_s, 0, f"{text}, {batch.estimated_s:.1f} s estimated"
    )
