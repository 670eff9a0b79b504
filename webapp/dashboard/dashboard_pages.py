"""Every page of the dashboard with its address; all need a signed-in operator and read only Postgres."""

from apiflask import APIBlueprint, APIFlask
from flask import g, render_template
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session, sessionmaker
from werkzeug.exceptions import HTTPException

from models.connections.database_errors import explain, is_unfit
from settings import Settings
from webapp.dashboard import bulk_pages, job_pages, openapi_page, queue_page, record_pages, service_pages, sign_in_pages
from webapp.dashboard.charts.quantities import count, duration, instant, memory, plural
from webapp.dashboard.company_sign_in import company_sign_in_of
from webapp.dashboard.dashboard_context import EXTENSION, DashboardContext
from webapp.dashboard.operator_sign_in import require_operator
from webapp.dashboard.page_reads import PageReads

# The endpoint and the name of each page in the navigation, and the endpoints of the pages below it.
NAVIGATION: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("index", "Overview", ()),
    ("queue", "Queue", ()),
    ("workers", "Workers", ()),
    ("predictions", "Predictions", ()),
    ("jobs", "Jobs", ("one_job", "job_texts", "confirm_jobs", "act_on_jobs")),
    ("bulk_jobs", "Batches", ("bulk_job",)),
    ("webhooks", "Webhooks", ("webhook",)),
    ("promises", "Promises", ()),
    ("usage", "Usage", ()),
    ("audit", "Audit", ()),
)

pages = APIBlueprint("dashboard", __name__, enable_openapi=False)
pages.before_request(require_operator)
pages.context_processor(lambda: {"operator": g.get("operator"), "navigation": NAVIGATION})
for template_filter in (count, duration, instant, memory, plural):
    pages.add_app_template_filter(template_filter)

pages.add_url_rule("/", view_func=service_pages.index)
pages.add_url_rule("/policy", view_func=service_pages.set_policy, methods=["POST"])
pages.add_url_rule("/queue", view_func=queue_page.queue)
pages.add_url_rule("/workers", view_func=service_pages.workers)
for rule, endpoint, view, given in (
    ("/queue/pause", "pause", queue_page.set_paused, {"paused": True}),
    ("/queue/resume", "resume", queue_page.set_paused, {"paused": False}),
    ("/workers/drain", "drain", service_pages.set_drained, {"drained": True}),
    ("/workers/resume", "undrain", service_pages.set_drained, {"drained": False}),
):
    pages.add_url_rule(rule, endpoint, view, methods=["POST"], defaults=given)
pages.add_url_rule("/predictions", view_func=service_pages.predictions)
pages.add_url_rule("/predictions/activate", view_func=service_pages.activate, methods=["POST"])
pages.add_url_rule("/jobs", view_func=job_pages.jobs)
pages.add_url_rule("/jobs/act", view_func=job_pages.confirm_jobs)
pages.add_url_rule("/jobs/act", view_func=job_pages.act_on_jobs, methods=["POST"])
pages.add_url_rule("/jobs/<id>", view_func=job_pages.one_job)
pages.add_url_rule("/jobs/<id>/act", view_func=job_pages.act_on_job, methods=["POST"])
pages.add_url_rule("/jobs/<id>/texts", view_func=job_pages.job_texts, methods=["POST"])
pages.add_url_rule("/batches", view_func=bulk_pages.bulk_jobs)
pages.add_url_rule("/batches/<id>", view_func=bulk_pages.bulk_job)
pages.add_url_rule("/batches/<id>/<action>", view_func=bulk_pages.act_on_bulk_job, methods=["POST"])
pages.add_url_rule("/webhooks", view_func=record_pages.webhooks)
pages.add_url_rule("/webhooks/<id>", view_func=record_pages.webhook)
pages.add_url_rule("/webhooks/<id>/redeliver", view_func=record_pages.redeliver, methods=["POST"])
pages.add_url_rule("/promises", view_func=record_pages.promises)
pages.add_url_rule("/usage", view_func=record_pages.usage)
pages.add_url_rule("/audit", view_func=record_pages.audit)
pages.add_url_rule("/sign-out", view_func=sign_in_pages.sign_out, methods=["POST"])


def register(app: APIFlask, settings: Settings, sessions: sessionmaker[Session]) -> None:
    """Adds the pages, the sign-in and the API's reference to an app that has the context of all calls."""
    password = settings.dashboard_password
    app.extensions[EXTENSION] = DashboardContext(
        PageReads(sessions, settings.lease_s),
        company_sign_in_of(settings),
        password.get_secret_value() if password else None,
    )
    for blueprint in (sign_in_pages.sign_in_pages, pages, openapi_page.pages):
        app.register_blueprint(blueprint)


@pages.errorhandler(HTTPException)
def show_http_error(error: HTTPException) -> tuple[str, int]:
    """Returns the page for an unknown address or filter, and for an action that the operator may not take."""
    return render_template("error.html", title=error.name, message=error.description), error.code or 500


@pages.errorhandler(DataError)
def show_unstorable(error: DataError) -> tuple[str, int]:
    """Returns the page for values that Postgres cannot store, such as a NUL in a name."""
    return render_template(
        "error.html", title="Bad Request", message="This address or form has a character that no name may have."
    ), 400


@pages.errorhandler(OperationalError)
def show_no_database(error: OperationalError) -> tuple[str, int]:
    """Returns the page that is shown while the database does not answer, or not within STATEMENT_TIMEOUT_S."""
    message = "Postgres does not answer, or not in time. Load this page again in a moment; /readyz says what is wrong."
    return render_template("error.html", title="No answer from Postgres", message=message), 503


@pages.errorhandler(ProgrammingError)
def show_unfit_database(error: ProgrammingError) -> tuple[str, int]:
    """Returns the page that is shown while tables or rights do not fit; raises any other error, which is ours."""
    if not is_unfit(error):
        raise error
    return render_template("error.html", title="Database unfit", message=f"{explain(error)}."), 503
