"""Batches of OpenAI's Batch API, of all tenants, with their progress; they are cancelled here."""

from flask import abort, redirect, render_template, url_for
from werkzeug.wrappers import Response

from models.bulk import bulk_jobs as stored_jobs
from models.bulk.bulk_tables import BulkJob
from models.operations import operator_access
from webapp.app_context import current_context
from webapp.dashboard.operator_sign_in import current_operator

SHOWN = 100  # the newest; not tuned


def bulk_jobs() -> str:
    """The newest batches."""
    with current_context().sessions() as session:
        jobs = stored_jobs.newest_jobs(session, SHOWN)
    now = current_context().page_reads.clock.get()
    return render_template("bulk_jobs.html", as_of=now, jobs=jobs, cancellable=stored_jobs.CANCELLABLE)


def cancel_bulk_job(id: str) -> Response:
    """Cancel a batch; what it has done stays."""
    with current_context().sessions() as session:
        job = session.get(BulkJob, id)
        if job is None:
            abort(404)
        operator_access.record_action(session, current_operator().name, "cancel", f"batch {id}")
        stored_jobs.cancel_job(session, job.tenant, id)
    return redirect(url_for("dashboard.bulk_jobs"), 303)
