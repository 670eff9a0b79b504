"""The overview: how the service does, what needs attention, its figures and their history."""

from operator import attrgetter

from flask import abort, render_template, request

from webapp.app_context import current_context
from webapp.charts.history_charts import RANGES, SHORTEST

SORT_COLUMNS = ("answers", "name", "p50_s", "p95_s", "p99_s", "max_s", "rmse")  # of the table of applications


def index() -> str:
    """The overview; answers 400 for an unknown range or column."""
    over, sort = chosen_range(), request.args.get("sort", "answers")
    if sort not in SORT_COLUMNS:
        abort(400)
    reads = current_context().page_reads
    data = reads.overview.get()
    applications = sorted(data.applications, key=attrgetter("name"))
    if sort != "name":
        applications.sort(key=lambda application: getattr(application, sort) or 0, reverse=True)
    return render_template(
        "overview.html",
        data=data,
        charts=reads.charts[over].get(),
        applications=applications,
        over=over,
        ranges=RANGES,
        sort=sort,
    )


def chosen_range() -> str:
    """The range of the charts that the address names; answers 400 for one that there is not."""
    over = request.args.get("over", SHORTEST)
    if over not in RANGES:
        abort(400)
    return over
