"""Predictions: how right they are, by application and over time; published versions, and going back to one."""

from flask import abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models import model_versions
from models.model_versions import UnknownVersion
from models.operations import operator_access
from webapp.app_context import current_context
from webapp.charts.history_charts import RANGES
from webapp.charts.length_scatter import length_scatter
from webapp.dashboard.operator_sign_in import current_operator
from webapp.dashboard.overview_page import chosen_range


def predictions() -> str:
    """Figures of the newest answers, charts over time, versions."""
    over, reads = chosen_range(), current_context().page_reads
    answers = reads.predicted.get()
    return render_template(
        "predictions.html",
        as_of=reads.clock.get(),
        over=over,
        ranges=RANGES,
        charts=reads.prediction_charts[over].get(),
        answers=answers,
        scatter=length_scatter(answers) if answers else None,
        scores=reads.scores.get(),
        tau=reads.tau.get(),
        versions=reads.versions.get(),
    )


def activate() -> Response:
    """Put an earlier version back into service; predictors and planner take it over within seconds."""
    version = request.form.get("version", "")
    with current_context().sessions() as session:
        operator_access.record_action(session, current_operator().name, "activate", f"model {version}")
        try:
            model_versions.activate(session, version)
        except UnknownVersion as error:
            abort(404, str(error))
        session.commit()
    current_context().page_reads.forget()
    return redirect(url_for("dashboard.predictions"), 303)
