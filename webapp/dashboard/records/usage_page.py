"""What tenants used, and what operators did."""

from datetime import timedelta

from flask import abort, render_template, request

from models.operations import operator_access
from models.tenants.usage import used
from webapp.app_context import current_context

USAGE_DAYS = {"1": "today", "7": "7 days", "30": "30 days", "90": "90 days"}
SHOWN = 100  # entries of a page of the audit; not tuned


def usage() -> str:
    """Sums by tenant over some days; who used most of the devices comes first."""
    days = request.args.get("days", "30")
    if days not in USAGE_DAYS:
        abort(400)
    context = current_context()
    now = context.page_reads.clock.get()
    last = now.date()
    with context.sessions() as session:
        rows = used(session, None, last - timedelta(days=int(days) - 1), last, by=("tenant",))
    rows.sort(key=lambda row: (-row.gpu_s, row.tenant or ""))
    return render_template(
        "usage.html", rows=rows, days=days, choices=USAGE_DAYS, most=max((r.gpu_s for r in rows), default=0)
    )


def audit() -> str:
    """The newest entries, or those before one."""
    before = request.args.get("before", type=int)
    with current_context().sessions() as session:
        entries = operator_access.audit_entries(session, SHOWN + 1, before)
    return render_template("audit.html", entries=entries[:SHOWN], more=len(entries) > SHOWN, before=before)
