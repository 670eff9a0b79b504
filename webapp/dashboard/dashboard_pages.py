"""Every page of the dashboard with its address; all of them need an operator, and read Postgres alone."""

from apiflask import APIBlueprint
from flask import g, render_template
from sqlalchemy.exc import DataError, OperationalError
from werkzeug.exceptions import HTTPException

from webapp.dashboard import overview_page, predictions_page, queue_page, sign_in_page, workers_page
from webapp.dashboard.operator_sign_in import require_operator
from webapp.dashboard.quantity_format import count, duration, instant, memory, plural
from webapp.dashboard.records import bulk_page, job_page, jobs_page, usage_page, webhooks_page

# Endpoint, name, and the endpoints of the pages below it.
NAVIGATION: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("index", "Overview", ()),
    ("queue", "Queue", ()),
    ("workers", "Workers", ()),
    ("predictions", "Predictions", ()),
    ("jobs", "Jobs", ("one_job", "job_texts", "confirm_jobs", "act_on_jobs")),
    ("bulk_jobs", "Batches", ()),
    ("webhooks", "Webhooks", ("webhook",)),
    ("usage", "Usage", ()),
    ("audit", "Audit", ()),
)

pages = APIBlueprint("dashboard", __name__, enable_openapi=False)
pages.before_request(require_operator)
pages.context_processor(lambda: {"operator": g.get("operator"), "navigation": NAVIGATION})
for template_filter in (count, duration, instant, memory, plural):
    pages.add_app_template_filter(template_filter)

pages.add_url_rule("/", view_func=overview_page.index)
pages.add_url_rule("/queue", view_func=queue_page.queue)
pages.add_url_rule("/queue/pause", view_func=queue_page.pause, methods=["POST"])
pages.add_url_rule("/queue/resume", view_func=queue_page.resume, methods=["POST"])
pages.add_url_rule("/workers", view_func=workers_page.workers)
pages.add_url_rule("/workers/drain", view_func=workers_page.drain, methods=["POST"])
pages.add_url_rule("/workers/resume", view_func=workers_page.undrain, methods=["POST"])
pages.add_url_rule("/predictions", view_func=predictions_page.predictions)
pages.add_url_rule("/predictions/activate", view_func=predictions_page.activate, methods=["POST"])
pages.add_url_rule("/jobs", view_func=jobs_page.jobs)
pages.add_url_rule("/jobs/act", view_func=jobs_page.confirm_jobs)
pages.add_url_rule("/jobs/act", view_func=jobs_page.act_on_jobs, methods=["POST"])
pages.add_url_rule("/jobs/<id>", view_func=job_page.one_job)
pages.add_url_rule("/jobs/<id>/act", view_func=jobs_page.act_on_job, methods=["POST"])
pages.add_url_rule("/jobs/<id>/texts", view_func=job_page.job_texts, methods=["POST"])
pages.add_url_rule("/batches", view_func=bulk_page.bulk_jobs)
pages.add_url_rule("/batches/<id>/cancel", view_func=bulk_page.cancel_bulk_job, methods=["POST"])
pages.add_url_rule("/webhooks", view_func=webhooks_page.webhooks)
pages.add_url_rule("/webhooks/<id>", view_func=webhooks_page.webhook)
pages.add_url_rule("/webhooks/<id>/redeliver", view_func=webhooks_page.redeliver, methods=["POST"])
pages.add_url_rule("/usage", view_func=usage_page.usage)
pages.add_url_rule("/audit", view_func=usage_page.audit)
pages.add_url_rule("/sign-out", view_func=sign_in_page.sign_out, methods=["POST"])


@pages.errorhandler(HTTPException)
def show_http_error(error: HTTPException) -> tuple[str, int]:
    """The page for an address or a filter that does not exist, and for what somebody may not do."""
    return render_template("error.html", title=error.name, message=error.description), error.code or 500


@pages.errorhandler(DataError)
def show_unstorable(error: DataError) -> tuple[str, int]:
    """The page for what Postgres takes for no text or number of ours, such as a NUL in a name."""
    return render_template("error.html", title="Bad Request", message="This address or form holds no such name."), 400


@pages.errorhandler(OperationalError)
def show_no_database(error: OperationalError) -> tuple[str, int]:
    """The page while the database does not answer."""
    return render_template("error.html", title="No database", message="Postgres does not answer at the moment."), 503
