"""The pages of the whole service (overview, workers, predictions) and what they change."""

from operator import attrgetter

from flask import abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models import model_versions, planner_state
from models.model_versions import UnknownVersion
from models.operations import fleet_use
from models.registered_workers import REPAIR_ENGINE
from scheduling.sharing.policy_factory import POLICIES
from webapp.context.app_context import current_context
from webapp.dashboard.application_names import names_for_operator
from webapp.dashboard.charts.page_charts import RANGES, SHORTEST, length_scatter
from webapp.dashboard.charts.timelines import worker_strip
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.operator_actions import operator_action
from webapp.dashboard.page_reads import BACK_S

# Columns by which the table of applications can be sorted.
SORT_COLUMNS = ("answers", "name", "p50_s", "p95_s", "p99_s", "max_s", "rmse")


def index() -> str:
    """Shows the overview; answers 400 for an unknown range or column."""
    over, sort = chosen_range(), request.args.get("sort", "answers")
    if sort not in SORT_COLUMNS:
        abort(400)
    reads = current_dashboard().reads
    data = reads.overview.get()
    applications = sorted(data.applications, key=attrgetter("name"))
    if sort != "name":
        applications.sort(key=lambda application: getattr(application, sort) or 0, reverse=True)
    return render_template(
        "overview.html",
        data=data,
        charts=reads.charts[over].get(),
        applications=applications,
        names=names_for_operator(
            [one.name for one in applications] + [view.request.application for view in data.answers]
        ),
        over=over,
        ranges=RANGES,
        sort=sort,
    )


def set_policy() -> Response:
    """Puts another policy in force; the planner gives it all waiting requests at its next step."""
    name = request.form.get("policy", "")
    if name not in POLICIES:
        abort(404, "There is no policy of this name.")
    with operator_action("set", f"policy {name}") as session:
        planner_state.set_policy(session.connection(), name)
    return redirect(url_for("dashboard.index"), 303)


def chosen_range() -> str:
    """Returns the range of the charts from the address; answers 400 if it is unknown."""
    over = request.args.get("over", SHORTEST)
    if over not in RANGES:
        abort(400)
    return over


def workers() -> str:
    """Shows every worker with a heartbeat within the last day."""
    reads = current_dashboard().reads
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
        live=sum(worker.lives(current_context().worker_alive_s) for worker in fleet.workers),
        strips=strips,
        rows=rows,
        empty=fleet.empty,
        repair=REPAIR_ENGINE,
        ask=fleet_use.ASK_THE_SAME,
        names=names_for_operator(row.application for row in fleet.running),
        alive_s=current_context().worker_alive_s,
        minutes=int(BACK_S // 60),
    )


def set_drained(drained: bool) -> Response:
    """Drains a worker, which then gets no new batch, or resumes a drained one."""
    name = request.form.get("worker", "")
    with operator_action("drain" if drained else "resume", f"worker {name}") as session:
        if not fleet_use.set_drained(session, name, drained):
            abort(404, "There is no worker of this name.")
    return redirect(url_for("dashboard.workers"), 303)


def predictions() -> str:
    """Shows figures of the newest answers, charts over time, and published versions."""
    over, reads = chosen_range(), current_dashboard().reads
    answers = reads.predicted.get()
    names = names_for_operator(one.application for one in answers)
    return render_template(
        "predictions.html",
        as_of=reads.clock.get(),
        over=over,
        ranges=RANGES,
        charts=reads.prediction_charts[over].get(),
        names=names,
        scatter=length_scatter(answers, names) if answers else None,
        scores=reads.scores.get(),
        tau=reads.tau.get(),
        versions=reads.versions.get(),
    )


def activate() -> Response:
    """Puts an earlier version back into service; predictors and planner use it within seconds."""
    version = request.form.get("version", "")
    with operator_action("activate", f"model {version}") as session:
        try:
            model_versions.activate(session, version)
        except UnknownVersion as error:
            abort(404, str(error))
    return redirect(url_for("dashboard.predictions"), 303)
