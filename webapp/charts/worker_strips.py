"""A strip for each worker: its batches over the last minutes, and what they say of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from models.operations.fleet_use import BatchSpan
from webapp.charts.timelines import TimeBar, Timeline, bar, quarters

# More bars than this are drawn as the times in which anything was served: each would be narrower than a pixel.
MOST_BARS = 200
KINDS = {"finished": "good", "running": "first", "out_of_memory": "bad", "lost": "bad"}


@dataclass(frozen=True, slots=True)
class WorkerStrip:
    """A worker's picture; its figures are of the time that the strip shows, and None where it shows none."""

    timeline: Timeline
    idle_share: float | None
    tokens_per_s: float | None


def worker_strip(batches: Sequence[BatchSpan], now: datetime, back_s: float, up_s: float) -> WorkerStrip:
    """The strip of one worker's batches over the last `back_s`; its present process has been there for `up_s`."""
    spans = [(*_span(batch, now, back_s), batch) for batch in batches]
    busy = merged([(start, end) for start, end, _ in spans])
    if len(spans) > MOST_BARS:
        bars = [bar("good", start, end, back_s, 0, "serving") for start, end in busy]
    else:
        bars = [_bar_of(start, end, batch, back_s) for start, end, batch in reversed(spans)]
    shown_s = min(back_s, max([up_s, *(back_s - start for start, _ in busy)]))  # an earlier process served the others
    busy_s = sum(end - start for start, end in busy)
    return WorkerStrip(
        Timeline(bars, quarters(back_s, ago=True), 1),
        idle_share=min(1.0, max(0.0, 1 - busy_s / shown_s)) if shown_s > 0 else None,
        tokens_per_s=sum(batch.valid_tokens for batch in batches) / shown_s if shown_s > 0 else None,
    )


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The times that any of the spans covers, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _span(batch: BatchSpan, now: datetime, back_s: float) -> tuple[float, float]:
    """When it began and ended, in seconds of the axis."""
    start_s = back_s - (now - batch.started_at).total_seconds()
    end_s = back_s if batch.finished_at is None else back_s - (now - batch.finished_at).total_seconds()
    return max(0.0, start_s), max(0.0, start_s, end_s)


def _bar_of(start_s: float, end_s: float, batch: BatchSpan, back_s: float) -> TimeBar:
    what = "rows that joined" if batch.joins else "batch"
    text = f"{what} #{batch.id} of {batch.size}: {batch.status.replace('_', ' ')}, {end_s - start_s:.1f} s"
    return bar(
        KINDS.get(batch.status, "none"), start_s, end_s, back_s, 0, f"{text}, {batch.estimated_s:.1f} s estimated"
    )
