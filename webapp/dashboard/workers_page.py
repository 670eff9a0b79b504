"""The workers: what each served lately, its memory and rows; workers are drained and resumed here."""

from flask import abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.operations import fleet_use, operator_access
from webapp.app_context import current_context
from webapp.charts.worker_strips import worker_strip
from webapp.dashboard.operator_sign_in import current_operator
from webapp.dashboard.page_reads import BACK_S


def workers() -> str:
    """Every worker that was heard of within a day."""
    reads = current_context().page_reads
    now = reads.clock.get()
    fleet = reads.fleet.get()
    strips = {
        worker.name: worker_strip(
            [batch for batch in fleet.batches if batch.worker == worker.name], now, BACK_S, worker.up_s
        )
        for worker in fleet.workers
    }
    rows = {worker.name: [row for row in fleet.running if row.worker == worker.name] for worker in fleet.workers}
    return render_template(
        "workers.html",
        as_of=now,
        workers=fleet.workers,
        strips=strips,
        rows=rows,
        alive_s=current_context().worker_alive_s,
        minutes=int(BACK_S // 60),
    )


def drain() -> Response:
    """Keep new batches from a worker."""
    return _set_drained(True)


def undrain() -> Response:
    """Give a worker batches again."""
    return _set_drained(False)


def _set_drained(drained: bool) -> Response:
    name = request.form.get("worker", "")
    with current_context().sessions() as session:
        operator_access.record_action(
            session, current_operator().name, "drain" if drained else "resume", f"worker {name}"
        )
        if not fleet_use.set_drained(session, name, drained):
            abort(404, "There is no worker of this name.")
    current_context().page_reads.forget()
    return redirect(url_for("dashboard.workers"), 303)
