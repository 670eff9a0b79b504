"""One job's life as a picture: how long it waited, was on its way to its worker, was served."""

from datetime import datetime

from models.client_requests import RequestView
from webapp.charts.timelines import Timeline, bar, quarters


def job_life(view: RequestView) -> Timeline:
    """Bars for waiting, sent and serving, from arrival until now or until the end."""
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
            f"{name} for {(last - first).total_seconds():.2f} s",
        )
        for kind, name, first, last in marks
        if first is not None and last is not None
    ]
    labels = [(x, text.removeprefix("in ") + " after arrival") for x, text in quarters(whole_s, ago=False)]
    return Timeline(bars, labels, 1)


def _within(at: datetime | None, first: datetime, last: datetime) -> datetime | None:
    """The instant, moved between the two: a job that ran again has marks of its last batch alone."""
    return None if at is None else min(max(at, first), last)
