"""Pages of stored records: webhooks (deliver again), promises, usage, audit."""

from datetime import UTC, datetime, timedelta

from flask import abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from models.operations import operator_access
from models.tenants.usage import used
from models.webhooks import webhook_deliveries, webhook_endpoints
from models.webhooks.webhook_tables import WebhookEndpoint
from webapp.context.app_context import current_context
from webapp.dashboard.charts.reliability import reliability_diagram
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.operator_sign_in import current_operator

SHOWN_DELIVERIES = 100  # endpoints, or deliveries, of a page; not tuned


def webhooks() -> str:
    """Shows the endpoints, failing ones first."""
    with current_context().sessions() as session:
        endpoints = webhook_endpoints.endpoint_states(session, SHOWN_DELIVERIES)
    return render_template("webhooks.html", endpoints=endpoints)


def webhook(id: str) -> str:
    """Shows one endpoint with its deliveries."""
    before = request.args.get("before", type=int)
    with current_context().sessions() as session:
        endpoint = session.get(WebhookEndpoint, id) or abort(404)
        deliveries = webhook_deliveries.newest_deliveries(session, id, SHOWN_DELIVERIES + 1, before)
    return render_template(
        "webhook.html",
        endpoint=endpoint,
        deliveries=deliveries[:SHOWN_DELIVERIES],
        more=len(deliveries) > SHOWN_DELIVERIES,
        before=before,
    )


def redeliver(id: str) -> Response:
    """Sends one delivery again, or all that were given up."""
    delivery = request.form.get("delivery", type=int)
    with current_context().sessions() as session:
        endpoint = session.get(WebhookEndpoint, id) or abort(404)
        what = f"delivery {delivery}" if delivery is not None else "what was given up"
        operator_access.record_action(session, current_operator().name, "redeliver", f"{what} of webhook {id}")
        if delivery is None:
            webhook_deliveries.redeliver_given_up(session, id)
        elif webhook_deliveries.redeliver(session, endpoint.tenant, id, delivery) is None:
            abort(404)
    return redirect(url_for("dashboard.webhook", id=id), 303)


USAGE_DAYS = {"1": "today", "7": "7 days", "30": "30 days", "90": "90 days"}
SHOWN_ENTRIES = 100  # entries of a page of the audit; not tuned


def usage() -> str:
    """Shows the usage of some days by tenant and tier, the one with the most GPU-seconds first."""
    days = request.args.get("days", "30")
    if days not in USAGE_DAYS:
        abort(400)
    context = current_context()
    now = current_dashboard().reads.clock.get()
    last = now.date()
    with context.sessions() as session:
        rows = used(session, None, last - timedelta(days=int(days) - 1), last, by=("tenant", "tier"))
    rows.sort(key=lambda row: (-row.gpu_s, row.tenant or ""))
    return render_template(
        "usage.html", rows=rows, days=days, choices=USAGE_DAYS, most=max((r.gpu_s for r in rows), default=0)
    )


PROMISE_WINDOWS = {"day": "24 hours", "week": "7 days"}


def promises() -> str:
    """Shows which promises of the last day or week were kept, and what broke the others."""
    over = request.args.get("over", "day")
    if over not in PROMISE_WINDOWS:
        abort(400)
    book = current_context().promise_book.get()
    sums = book.day if over == "day" else book.week
    worst = book.worst_hour
    return render_template(
        "promises.html",
        sums=sums,
        worst=worst,
        began_at=None if worst is None else datetime.fromtimestamp(worst.hour or 0.0, UTC),
        over=over,
        choices=PROMISE_WINDOWS,
        diagram=reliability_diagram([one for one in sums if one.service_tier is None]),
    )


def audit() -> str:
    """Shows the newest entries of the audit, or those before a given one."""
    before = request.args.get("before", type=int)
    with current_context().sessions() as session:
        entries = operator_access.audit_entries(session, SHOWN_ENTRIES + 1, before)
    return render_template(
        "audit.html", entries=entries[:SHOWN_ENTRIES], more=len(entries) > SHOWN_ENTRIES, before=before
    )
