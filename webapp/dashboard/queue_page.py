"""The queue in the order in which it would be served now: what is next and why, and all that waits in groups.

Everything on the page comes from one read (`page_reads.py:ReadQueue`), so that all columns show the same moment.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.operations import operator_overview
from models.operations.operator_jobs import QueuedJob
from models.planning.queue_snapshot import BatchInQueue
from scheduling.policies.magnus import MagnusPolicy
from scheduling.policy import Policy
from scheduling.sharing.policy_factory import POLICIES, PolicySettings
from webapp.dashboard.application_names import names_for_operator
from webapp.dashboard.charts.timelines import queue_timeline
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.operator_actions import operator_action

NEXT = 20  # batches or requests that the page lists one by one; the rest stands in groups
# Bounds of the groups' predicted lengths, in tokens: each is four times the one before. Not tuned.
GROUP_TOKENS = (16, 64, 256, 1024, 4096)


def queue() -> str:
    """Shows the queue, filtered by model, tenant and application."""
    reads = current_dashboard().reads
    counts, snapshot, waiting = (read := reads.waiting.get()).counts, read.snapshot, read.requests
    only = QueueFilter(*(request.args.get(name, "") for name in QueueFilter._fields))
    rows = waiting_rows(snapshot.queue.batches if snapshot else (), waiting, only)
    policy = policy_named(snapshot.decisions.policy if snapshot else "")
    first = next((row for row in rows if row.place == 1), None)
    return render_template(
        "queue.html",
        as_of=counts.now,
        now=counts,
        snapshot=snapshot,
        paused_since=reads.paused_since.get(),
        only=only,
        choices={name: sorted({str(getattr(one, name)) for one in waiting.values()}) for name in QueueFilter._fields},
        names=names_for_operator(one.application for one in waiting.values()),
        joins_singly=policy.mode == "continuous",
        timed=policy.mode == "continuous" or any(row.batch.estimated_s for row in rows),  # `vs` estimates no times
        by_ratio="{ratio}" in policy.why_first,
        wastes=isinstance(policy, MagnusPolicy),
        memory_known=any(row.batch.memory_share is not None for row in rows[:NEXT]),
        rows=rows[:NEXT],
        more=len(rows) - NEXT,
        requests=[one for row in rows for one in row.requests if only.fits(one.job)][:NEXT],
        groups=waiting_groups(rows, only),
        unnamed=max(0, snapshot.queue.requests - len(snapshot.queue.named_ids)) if snapshot else 0,
        timeline=queue_timeline([(row.place, row.batch) for row in rows[:NEXT]]),
        why=why_first(policy, first) if first else None,
    )


def set_paused(paused: bool) -> Response:
    """Pauses or resumes planning."""
    with operator_action("pause" if paused else "resume", "planning") as session:
        operator_overview.set_paused(session, paused)
    return redirect(url_for("dashboard.queue"), 303)


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A waiting request; `place` is 1 for the next one, and its batch starts in `starts_in_s` seconds."""

    place: int
    job: QueuedJob
    starts_in_s: float


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One waiting batch; `place` is 1 for the next batch, `shown` counts its requests that pass the filter."""

    place: int
    batch: BatchInQueue
    requests: Sequence[PlacedRequest]  # those of the batch's listed requests that still wait
    shown: int

    @property
    def waited_s(self) -> float | None:
        """The seconds for which its oldest request has waited."""
        return max((one.job.waited_s for one in self.requests), default=None)

    def values(self, field: str) -> list[str]:
        """Returns the tenants, applications or models of the batch's requests, the most frequent first."""
        values = [str(getattr(one.job, field)) for one in self.requests]
        return sorted(set(values), key=lambda value: (-values.count(value), value))


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A tenant's waiting requests whose predicted lengths are between the same bounds; at least one request."""

    lengths: str
    tenant: str
    requests: Sequence[PlacedRequest]  # in the order of service

    @property
    def waited_s(self) -> float:
        """The seconds for which its oldest request has waited."""
        return max(one.job.waited_s for one in self.requests)

    @property
    def predicted_tokens(self) -> float:
        """The median of the predicted lengths."""
        return median(one.job.predicted_tokens for one in self.requests)


class QueueFilter(NamedTuple):
    """The model, tenant and application that the page shows; an empty field shows all."""

    model: str = ""
    tenant: str = ""
    application: str = ""

    def fits(self, request: QueuedJob) -> bool:
        """Returns whether this request passes the filter."""
        return all(wanted in ("", getattr(request, name)) for name, wanted in self._asdict().items())

    def __bool__(self) -> bool:
        return any(self)


def waiting_rows(
    batches: Iterable[BatchInQueue], requests: Mapping[str, QueuedJob], only: QueueFilter
) -> list[WaitingRow]:
    """Returns the waiting batches that have a request which passes the filter, with their places."""
    rows, ahead = [], 0
    for place, batch in enumerate(batches, 1):
        known = [
            PlacedRequest(ahead + number, requests[name], batch.starts_in_s)
            for number, name in enumerate(batch.ids, 1)
            if name in requests
        ]
        shown = sum(only.fits(one.job) for one in known) if only else batch.size
        if shown and (known or not batch.ids):
            rows.append(WaitingRow(place, batch, known, shown))
        ahead += batch.size
    return rows


def waiting_groups(rows: Iterable[WaitingRow], only: QueueFilter) -> list[WaitingGroup]:
    """Groups the rows' requests that pass the filter by length and tenant; short lengths first, then large groups."""
    found: dict[tuple[int, str], list[PlacedRequest]] = {}
    for one in (one for row in rows for one in row.requests if only.fits(one.job)):
        found.setdefault((bisect_left(GROUP_TOKENS, one.job.predicted_tokens), one.job.tenant), []).append(one)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    return [WaitingGroup(_bounds(length), tenant, members) for (length, tenant), members in ordered]


def _bounds(index: int) -> str:
    least = GROUP_TOKENS[index - 1] + 1 if index else 1
    return f"{least:,} to {GROUP_TOKENS[index]:,}" if index < len(GROUP_TOKENS) else f"{least:,} or more"


def policy_named(name: str) -> Policy | type[Policy]:
    """Returns a policy of this name, whose properties the page shows, or for an unknown name the base class."""
    return POLICIES[name](PolicySettings()) if name in POLICIES else Policy


def why_first(policy: Policy | type[Policy], first: WaitingRow) -> str:
    """Returns the reason why a policy serves this batch first, in one or two sentences."""
    half = "It is a half of a batch that ran out of memory; no request may join it. " if first.batch.sealed else ""
    return half + policy.why_first.format(
        ratio=f"{first.batch.response_ratio:.2f}",
        waited=f"{first.waited_s or 0.0:.1f}",
        seconds=f"{first.batch.estimated_s:.1f}",
    )
