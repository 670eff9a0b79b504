"""Webhook endpoints of all tenants, what was delivered to them, and sending it again."""

from flask import abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.operations import all_tenants, audit_trail
from models.webhooks import webhook_deliveries
from webapp.app_context import current_context
from webapp.dashboard.operator_sign_in import current_operator

SHOWN = 100  # endpoints, and deliveries of a page; not tuned


def webhooks() -> str:
    """The endpoints, those that fail first."""
    with current_context().sessions() as session:
        endpoints = all_tenants.endpoint_states(session, SHOWN)
    return render_template("webhooks.html", endpoints=endpoints)


def webhook(id: str) -> str:
    """One endpoint with its deliveries."""
    before = request.args.get("before", type=int)
    with current_context().sessions() as session:
        endpoint = all_tenants.endpoint(session, id)
        if endpoint is None:
            abort(404)
        deliveries = all_tenants.deliveries(session, id, SHOWN + 1, before)
    return render_template(
        "webhook.html", endpoint=endpoint, deliveries=deliveries[:SHOWN], more=len(deliveries) > SHOWN, before=before
    )


def redeliver(id: str) -> Response:
    """Send one delivery again, or all that were given up."""
    delivery = request.form.get("delivery", type=int)
    with current_context().sessions() as session:
        endpoint = all_tenants.endpoint(session, id)
        if endpoint is None:
            abort(404)
        what = f"delivery {delivery}" if delivery is not None else "what was given up"
        audit_trail.write(session, current_operator().name, "redeliver", f"{what} of webhook {id}")
        if delivery is None:
            all_tenants.redeliver_given_up(session, id)
        elif webhook_deliveries.redeliver(session, endpoint.tenant, id, delivery) is None:
            abort(404)
    return redirect(url_for("dashboard.webhook", id=id), 303)
