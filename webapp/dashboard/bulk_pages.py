"""The pages of bulk jobs, which the Batch API calls batches: their list, and one job with its charts and actions."""

from datetime import timedelta

from flask import abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.bulk import bulk_jobs as stored_jobs
from models.bulk.bulk_jobs import FileDeleted, TooManyJobs
from models.bulk.bulk_tables import ENDED, BulkJob
from protocol.bulk.bulk_schemas import window_s
from protocol.client_errors import InvalidRequest
from webapp.bulk.retried_lines import retry_of
from webapp.context.app_context import current_context
from webapp.dashboard.charts.burn_down import burn_down
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.operator_actions import operator_action

SHOWN_BULK_JOBS = 100  # the newest bulk jobs; not tuned


def bulk_jobs() -> str:
    """Shows the newest bulk jobs."""
    with current_context().sessions() as session:
        jobs = stored_jobs.newest_jobs(session, SHOWN_BULK_JOBS)
    now = current_dashboard().reads.clock.get()
    return render_template("bulk_jobs.html", as_of=now, jobs=jobs, changeable=stored_jobs.CHANGEABLE)


def bulk_job(id: str) -> str:
    """Shows one bulk job: its burn-down, its errors by cause, and the actions on it."""
    reads = current_dashboard().reads
    job, now = _job(id), reads.clock.get()
    figures = reads.bulk_figures(id).get()
    told = current_context().bulk_outlook.get().of_job(job)
    end = None if told is None else now + timedelta(seconds=told.expected.seconds)
    return render_template(
        "bulk_job.html",
        as_of=now,
        job=job,
        figures=figures,
        charts=burn_down(job, figures.steps, end, now),
        end=end,
        changeable=job.status in stored_jobs.CHANGEABLE,
        ended=job.status in ENDED,
    )


ACTIONS = {"cancel": stored_jobs.cancel_job, "pause": stored_jobs.pause_job, "resume": stored_jobs.resume_job}


def act_on_bulk_job(id: str, action: str) -> Response:
    """Cancels, pauses or resumes a bulk job, gives it another window, or retries it; its answered lines stay."""
    job, context, shown = _job(id), current_context(), id
    window = request.form.get("window", "")
    if action not in (*ACTIONS, "window", "retry"):
        abort(404)
    try:
        seconds = window_s(window) if action == "window" else 0.0
        again = retry_of(context.sessions, job, context.upload_limits) if action == "retry" else None
    except (ValueError, InvalidRequest) as error:
        abort(400, str(error))
    with operator_action(action, f"batch {id} {window}".strip()) as session:
        if action == "window" and not stored_jobs.change_job(session, job.tenant, id, window, seconds):
            abort(400, "The batch has ended, or this window, which is counted from its creation, is over.")
        if action in ACTIONS:
            ACTIONS[action](session, job.tenant, id)
        if again is not None:
            try:
                shown = stored_jobs.create_job(session, again, window_s(again.completion_window)).id
            except (TooManyJobs, FileDeleted) as error:
                abort(400, str(error) or "The tenant has as many batches that have not ended as it may have.")
    return redirect(url_for("dashboard.bulk_job", id=shown), 303)


def _job(id: str) -> BulkJob:
    with current_context().sessions() as session:
        job = session.get(BulkJob, id)
    return job if job and job.deleted_at is None else abort(404)
