"""Budgets of batches: their price in GPU-seconds, what is told of them, and where one would pause a new batch."""

from collections.abc import Mapping
from typing import Any

from models.bulk.bulk_jobs import CHANGEABLE
from models.bulk.bulk_tables import BulkJob
from models.connections.session import in_session
from models.planning.queue_snapshot import Decisions, QueueSnapshot
from models.tenants import budgets
from protocol.bulk.bulk_schemas import AskedBudget, BatchBudget, BatchExtras, BatchMagnus
from protocol.client_errors import InvalidRequest
from webapp.context.app_context import AppContext

UNIT_NAMES = {"gpu_s": "GPU-seconds", "price": "of the price"}


def stored_budget(prices: Mapping[str, float], asked: AskedBudget, tier: str) -> dict[str, Any]:
    """Returns `BulkJob.budget`; raises InvalidRequest for a price where GPU-seconds of this tier have none."""
    if asked.unit == "price" and not prices.get(tier):
        why = "GPU-seconds have no price here: give the budget in gpu_s."
        raise InvalidRequest(why, param="magnus.budget.unit", code="no_prices")
    return asked.model_dump() | {"gpu_s": asked.amount / (prices[tier] if asked.unit == "price" else 1.0)}


def with_usage(
    magnus: BatchMagnus, job: BulkJob, prices: Mapping[str, float], snapshot: QueueSnapshot | None
) -> BatchMagnus:
    """Returns a stored batch's fields with what it used, its budget, and why its waiting lines pause."""
    decisions = Decisions() if snapshot is None else snapshot.decisions
    price, reason = prices.get(job.service_tier), None
    if job.status in CHANGEABLE and job.paused_at:
        reason = "client"
    elif job.status in CHANGEABLE and (job.id in decisions.spent_jobs or job.budget_spent):
        reason = "budget"
    elif job.status in CHANGEABLE and job.tenant in decisions.spent_tenants:
        reason = "tenant_budget"
    told = None
    if job.budget is not None:
        amount, unit = job.budget["amount"], job.budget["unit"]
        told = BatchBudget(amount=amount, unit=unit, used=_rounded(amount * (job.gpu_s / job.budget["gpu_s"])))
    used = {"gpu_s": _rounded(job.gpu_s), "price": None if price is None else _rounded(price * job.gpu_s)}
    return magnus.model_copy(update={"paused_for": reason, "budget": told, **used})


def with_pauses(
    context: AppContext, magnus: BatchMagnus, tenant: str, lines: int, gpu_s: float | None, extras: BatchExtras
) -> BatchMagnus:
    """Returns the fields of a dry run that should take `gpu_s`, with the line at which a budget would pause it."""
    prices, tier, asked = context.quotes.tier_prices, extras.service_tier, extras.budget
    left = in_session(context.sessions, budgets.left)(tenant, prices)
    limits = list[tuple[float, str]]()
    if asked is not None:
        limits.append((stored_budget(prices, asked, tier)["gpu_s"], "its budget"))
    if left is not None and (price := 1.0 if left.unit == "gpu_s" else prices.get(tier, 0.0)):
        what = f"what is left of your budget of this {left.period}, {left.amount:,.4g} {UNIT_NAMES[left.unit]},"
        limits.append((max(0.0, left.amount) / price, what))
    limit_s, what = min(limits, default=(0.0, ""))
    if not limits or not gpu_s or limit_s >= gpu_s:
        return magnus
    pauses_at = int(lines * limit_s / gpu_s)
    warning = f"The batch is likely to pause after about {pauses_at:,} of {lines:,} lines, when {what} is used."
    return magnus.model_copy(update={"budget_lines": pauses_at, "warnings": [*magnus.warnings, warning]})


def _rounded(amount: float) -> float:
    return float(f"{amount:.6g}")
