"""The queue: what waits in the order in which it would be served now; planning is paused and resumed here."""

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.operations import operator_access, operator_overview
from webapp.app_context import current_context
from webapp.charts.timelines import queue_timeline
from webapp.dashboard.operator_sign_in import current_operator
from webapp.dashboard.serving_order import QueueFilter, waiting_rows, why_first

DRAWN_BATCHES, LISTED_BATCHES = 24, 100  # in the picture and in the table, so that a long queue stays readable


def queue() -> str:
    """The queue, narrowed to a model, a tenant, an application."""
    reads = current_context().page_reads
    now, snapshot = reads.overview.get().now, current_context().queue_snapshot.get()
    only = QueueFilter(*(request.args.get(name, "") for name in ("model", "tenant", "application")))
    batches = snapshot.state.get("batches", []) if snapshot else []
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
        rows=rows[:LISTED_BATCHES],
        more=len(rows) - LISTED_BATCHES,
        timeline=queue_timeline(drawn) if drawn else None,
        why=why_first(snapshot.state["policy"], first) if snapshot and first else None,
    )


def pause() -> Response:
    """Have the planner assign nothing."""
    return _set_paused(True)


def resume() -> Response:
    """Have the planner assign again."""
    return _set_paused(False)


def _set_paused(paused: bool) -> Response:
    with current_context().sessions() as session:
        operator_access.record_action(session, current_operator().name, "pause" if paused else "resume", "planning")
        operator_overview.set_paused(session, paused)
    current_context().page_reads.forget()
    return redirect(url_for("dashboard.queue"), 303)
