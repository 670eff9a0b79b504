"""The dashboard at /: server-rendered pages of all tenants' requests, for the operator; reads Postgres alone."""

from operator import attrgetter
from typing import Any

from apiflask import APIBlueprint
from flask import abort, render_template, request
from pydantic import ValidationError
from sqlalchemy.exc import OperationalError
from werkzeug.exceptions import HTTPException

from models import client_requests
from models.queue_position import place_in_queue
from models.tables import RequestStatus
from webapp.app_context import current_context
from webapp.auth import require_dashboard_password
from webapp.quantity_format import count, duration, instant, memory, plural
from webapp.response_schemas import ListQuery
from webapp.submission import RESPONSE_ID

pages = APIBlueprint("dashboard", __name__, enable_openapi=False)
pages.before_request(require_dashboard_password)
for template_filter in (count, duration, instant, memory, plural):
    pages.add_app_template_filter(template_filter)

CHART_HOURS = {"1": "1 hour", "6": "6 hours", "24": "24 hours"}  # how far the charts reach back, with the links' texts
SORT_COLUMNS = ("answers", "name", "p50_s", "p95_s", "p99_s", "max_s", "rmse")  # of the table of applications
SHOWN_BATCHES = 12  # rows of the table of waiting batches, so that it stays as tall as the table beside it; not tuned


@pages.errorhandler(HTTPException)
def show_http_error(error: HTTPException) -> tuple[str, int]:
    """The page for an address or a filter that does not exist."""
    return render_template("error.html", title=error.name, message=error.description), error.code or 500


@pages.errorhandler(OperationalError)
def show_no_database(error: OperationalError) -> tuple[str, int]:
    """The page while the database does not answer."""
    return render_template("error.html", title="No database", message="Postgres does not answer at the moment."), 503


@pages.get("/")
def index() -> str:
    """The overview; its script fetches `/parts` every two seconds."""
    return render_template("overview.html", **overview_variables())


@pages.get("/parts")
def parts() -> str:
    """The parts of the overview that change."""
    return render_template("_overview.html", **overview_variables())


@pages.get("/requests")
def requests() -> str:
    """Requests of all tenants by arrival, with a filter, page by page."""
    filters = {name: value for name, value in request.args.items() if value}
    try:
        query = ListQuery.model_validate({"limit": "50", **filters})
    except ValidationError:
        abort(400)
    with current_context().sessions() as session:
        page = client_requests.page(
            session,
            None,
            statuses=[query.status] if query.status else [],
            application=query.application,
            after=query.after,
            limit=query.limit,
            oldest_first=query.order == "asc",
        )
    if page is None:
        abort(404)
    return render_template("requests.html", page=page, query=query, statuses=list(RequestStatus))


@pages.get("/requests/<id>")
def one_request(id: str) -> str:
    """All that is known of one request."""
    view = None
    if RESPONSE_ID.fullmatch(id):
        with current_context().sessions() as session:
            view = client_requests.fetch(session, None, id)
    if view is None:
        abort(404)
    return render_template(
        "request.html", view=view, place=place_in_queue(view, current_context().queue_snapshot.get())
    )


def overview_variables() -> dict[str, Any]:
    """The variables of the overview's templates; answers 400 for unknown hours or an unknown column."""
    hours, sort = request.args.get("hours", "1"), request.args.get("sort", "answers")
    if hours not in CHART_HOURS or sort not in SORT_COLUMNS:
        abort(400)
    data = current_context().overviews[hours].get()
    applications = sorted(data.applications, key=attrgetter("name"))
    if sort != "name":
        applications.sort(key=lambda application: getattr(application, sort) or 0, reverse=True)
    return {
        "data": data,
        "applications": applications,
        "hours": hours,
        "ranges": CHART_HOURS,
        "sort": sort,
        "alive_s": current_context().worker_alive_s,
        "shown_batches": SHOWN_BATCHES,
    }
