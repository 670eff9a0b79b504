"""Webhook endpoints of all tenants, what was delivered to them, and sending it again."""

from flask import abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.operations import operator_access
from models.webhooks import webhook_deliveries, webhook_endpoints
from models.webhooks.webhook_tables import WebhookEndpoint
from webapp.app_context import current_context
from webapp.dashboard.operator_sign_in import current_operator

SHOWN = 100  # endpoints, and deliveries of a page; not tuned


def webhooks() -> str:
    """The endpoints, those that fail first."""
    with current_context().sessions() as session:
        endpoints = webhook_endpoints.endpoint_states(session, SHOWN)
    return render_template("webhooks.html", endpoints=endpoints)


def webhook(id: str) -> str:
    """One endpoint with its deliveries."""
    before = request.args.get("before", type=int)
    with current_context().sessions() as session:
        endpoint = session.get(WebhookEndpoint, id)
        if endpoint is None:
            abort(404)
        deliveries = webhook_deliveries.newest_deliveries(session, id, SHOWN + 1, before)
    return render_template(
        "webhook.html", endpoint=endpoint, deliveries=deliveries[:SHOWN], more=len(deliveries) > SHOWN, before=before
    )


def redeliver(id: str) -> Response:
    """Send one delivery again, or all that were given up."""
    delivery = request.form.get("delivery", type=int)
    with current_context().sessions() as session:
        endpoint = session.get(WebhookEndpoint, id)
        if endpoint is None:
            abort(404)
        what = f"delivery {delivery}" if delivery is not None else "what was given up"
        operator_access.record_action(session, current_operator().name, "redeliver", f"{what} of webhook {id}")
        if delivery is None:
            webhook_deliveries.redeliver_given_up(session, id)
        elif webhook_deliveries.redeliver(session, endpoint.tenant, id, delivery) is None:
            abort(404)
    return redirect(url_for("dashboard.webhook", id=id), 303)
