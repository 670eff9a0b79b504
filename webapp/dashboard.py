"""The dashboard at /: server-rendered pages over Postgres alone, for the operator, so across all tenants."""

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
from webapp.app_context import context
from webapp.auth import require_dashboard_password
from webapp.quantity_format import count, duration, instant, memory, plural
from webapp.response_schemas import ListQuery
from webapp.submission import RESPONSE_ID

pages = APIBlueprint("dashboard", __name__, enable_openapi=False)
pages.before_request(require_dashboard_password)
for write in (count, duration, instant, memory, plural):
    pages.add_app_template_filter(write)

RANGES = {"1": "1 hour", "6": "6 hours", "24": "24 hours"}
SORTS = ("answers", "name", "p50_s", "p95_s", "p99_s", "max_s", "rmse")
SHOWN_BATCHES = 12


@pages.errorhandler(HTTPException)
def refused(error: HTTPException) -> tuple[str, int]:
    """An address or a filter that does not exist."""
    return render_template("error.html", title=error.name, says=error.description), error.code or 500


@pages.errorhandler(OperationalError)
def no_database(error: OperationalError) -> tuple[str, int]:
    """The pages come back with the database."""
    return render_template("error.html", title="No database", says="Postgres does not answer at the moment."), 503


@pages.get("/")
def index() -> str:
    """The first page; a browser with script asks for its parts again every two seconds."""
    return render_template("overview.html", **first_page())


@pages.get("/parts")
def parts() -> str:
    """The parts of the first page that change."""
    return render_template("_overview.html", **first_page())


@pages.get("/requests")
def requests() -> str:
    """Requests of all tenants by arrival, with a filter, page by page."""
    given = {name: value for name, value in request.args.items() if value}
    try:
        query = ListQuery.model_validate({"limit": "50", **given})
    except ValidationError:
        abort(400)
    with context().sessions() as session:
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
    seen = None
    if RESPONSE_ID.fullmatch(id):
        with context().sessions() as session:
            seen = client_requests.fetch(session, None, id)
    if seen is None:
        abort(404)
    return render_template("request.html", seen=seen, place=place_in_queue(seen, context().rooms.get()))


def first_page() -> dict[str, Any]:
    """What the first page's templates need."""
    hours, sort = request.args.get("hours", "1"), request.args.get("sort", "answers")
    if hours not in RANGES or sort not in SORTS:
        abort(400)
    data = context().overviews[hours].get()
    applications = sorted(data.applications, key=attrgetter("name"))
    if sort != "name":
        applications.sort(key=lambda application: getattr(application, sort) or 0, reverse=True)
    return {
        "data": data,
        "applications": applications,
        "hours": hours,
        "ranges": RANGES,
        "sort": sort,
        "alive_s": context().worker_alive_s,
        "shown_batches": SHOWN_BATCHES,
    }
