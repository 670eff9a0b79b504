"""The queue in the order in which it would be served now, with the reason why its first batch is first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.operations import operator_overview
from models.operations.operator_jobs import QueuedJob
from models.planning.queue_snapshot import BatchInQueue
from scheduling.policies.policy_factory import POLICIES, PolicySettings
from scheduling.policy import Policy
from webapp.app_context import current_context
from webapp.charts.timelines import queue_timeline
from webapp.dashboard.application_names import names_for_operator
from webapp.dashboard.operator_actions import operator_action

DRAWN_BATCHES, LISTED_BATCHES = 24, 100  # most in the picture and in the table, to keep both readable


def queue() -> str:
    """Shows the queue, filtered by model, tenant and application."""
    reads = current_context().page_reads
    now, snapshot = reads.overview.get().now, current_context().queue_snapshot.get()
    only = QueueFilter(*(request.args.get(name, "") for name in ("model", "tenant", "application")))
    batches = snapshot.batches if snapshot else ()
    waiting = reads.waiting.get()
    rows = waiting_rows(batches, waiting, only)
    drawn = [(row.place, row.batch) for row in rows[:DRAWN_BATCHES]]
    first = next((row for row in rows if row.place == 1), None)
    return render_template(
        "queue.html",
        as_of=now.now,
        now=now,
        snapshot=snapshot,
        paused_since=reads.paused_since.get(),
        only=only,
        choices={
            name: sorted({str(getattr(one, name)) for one in waiting.values()})
            for name in ("model", "tenant", "application")
        },
        names=names_for_operator(one.application for one in waiting.values()),
        rows=rows[:LISTED_BATCHES],
        more=len(rows) - LISTED_BATCHES,
        timeline=queue_timeline(drawn) if drawn else None,
        why=why_first(snapshot.policy, first) if snapshot and first else None,
    )


def pause() -> Response:
    """Pauses planning."""
    return _set_paused(True)


def resume() -> Response:
    """Resumes planning."""
    return _set_paused(False)


def _set_paused(paused: bool) -> Response:
    with operator_action("pause" if paused else "resume", "planning") as session:
        operator_overview.set_paused(session, paused)
    return redirect(url_for("dashboard.queue"), 303)


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One waiting batch; `place` is 1 for the next batch, `shown` counts its requests that pass the filter."""

    place: int
    batch: BatchInQueue
    requests: Sequence[QueuedJob]  # those of the batch's listed requests that still wait
    shown: int

    @property
    def waited_s(self) -> float | None:
        """The seconds for which its oldest request has waited."""
        return max((one.waited_s for one in self.requests), default=None)

    def values(self, field: str) -> list[str]:
        """Returns the tenants, applications or models of the batch's requests, the most frequent first."""
        values = [str(getattr(one, field)) for one in self.requests]
        return sorted(set(values), key=lambda value: (-values.count(value), value))


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """The model, tenant and application that the page shows; an empty field shows all."""

    model: str = ""
    tenant: str = ""
    application: str = ""

    def fits(self, request: QueuedJob) -> bool:
        """Returns whether this request passes the filter."""
        return all(
            wanted in ("", found)
            for wanted, found in (
                (self.model, request.model),
                (self.tenant, request.tenant),
                (self.application, request.application),
            )
        )

    def __bool__(self) -> bool:
        return any((self.model, self.tenant, self.application))


def waiting_rows(
    batches: Iterable[BatchInQueue], requests: Mapping[str, QueuedJob], only: QueueFilter
) -> list[WaitingRow]:
    """Returns the waiting batches that have a request which passes the filter, with their places."""
    rows = []
    for place, batch in enumerate(batches, 1):
        known = [requests[name] for name in batch.ids if name in requests]
        shown = sum(map(only.fits, known)) if only else batch.size
        if shown:
            rows.append(WaitingRow(place, batch, known, shown))
    return rows


def why_first(policy: str, first: WaitingRow) -> str:
    """Returns the reason why a policy serves this batch first, in one or two sentences."""
    if first.batch.sealed:
        return "It is a half of a batch that ran out of memory; no request may join it. " + _reason(policy, first)
    return _reason(policy, first)


def _reason(policy: str, first: WaitingRow) -> str:
    reason = POLICIES[policy](PolicySettings()).why_first if policy in POLICIES else Policy.why_first
    return reason.format(
        ratio=f"{first.batch.response_ratio:.2f}",
        waited=f"{first.waited_s or 0.0:.1f}",
        seconds=f"{first.batch.estimated_s:.1f}",
    )
