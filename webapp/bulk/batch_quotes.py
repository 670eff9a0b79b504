"""Offers promises for batches: the time by which the answers of a file are all there, in each tier of batches.

The times follow from the forecast of a batch that is made now and the errors of those of ended ones, in off-peak hours
alone for the tier `off_peak`. As for calls, an offer is accepted only while its promise still holds.
"""

from typing import Literal

from models.bulk.bulk_outlook import BulkOutlook
from models.bulk.bulk_tables import POOLING_ENDPOINTS, FilePurpose, StoredFile
from models.connections.session import in_session
from models.operations.promise_book import withheld_levels
from models.tenants import budgets
from models.tenants.budgets import BudgetLeft
from off_peak_hours import OffPeakHours
from protocol.bulk.bulk_schemas import LONGEST_WINDOW_S, CreateBatch, QuoteBatch
from protocol.bulk.request_lines import LineReader
from protocol.client_errors import InvalidRequest
from protocol.quotes.quote_objects import Quote
from protocol.requests.submission import canonical_digest
from scheduling.sharing.background.deadlines import Work
from webapp.bulk.batch_promises import CheckedLines, check_some_lines, refuse_another_endpoint, spread_lines
from webapp.context.app_context import AppContext
from webapp.limits.quote_terms import SignedOffer
from webapp.requests.quotes import FALLEN, PROBABILITIES, offers_of, promises, read_offer, refuse_outdated, rounded

BatchTier = Literal["flex", "off_peak"]


def checked_lines(context: AppContext, asked: QuoteBatch | CreateBatch, tenant: str, file: StoredFile) -> CheckedLines:
    """Checks some lines of a batch's file; raises InvalidRequest for results and for lines of another endpoint."""
    if file.purpose is not FilePurpose.batch:
        raise InvalidRequest("Only an uploaded file can be the input of a batch.", param="input_file_id")
    reader = LineReader(asked.endpoint, tenant, context.prompt_limits, context.queue_snapshot.get())
    lines = list(spread_lines(context.sessions, file))
    checked = check_some_lines(lines, file.lines, reader, context.response_times.get())
    refuse_another_endpoint(checked.checked)
    return checked


def batch_forecast_s(outlook: BulkOutlook, endpoint: str, tenant: str, work: Work) -> float | None:
    """Returns the seconds that a new batch of this work takes by the workers' costs; None for calls without a text."""
    return None if endpoint in POOLING_ENDPOINTS else outlook.forecast_s(tenant, "", work)


def quote_for_batch(context: AppContext, asked: QuoteBatch, tenant: str, file: StoredFile, now: float) -> Quote:
    """Returns the offers of each tier of batches."""
    outlook, sample = context.bulk_outlook.get(), checked_lines(context, asked, tenant, file)
    requests = [one for line in sample.checked for one in line.requests]
    if not requests:
        raise InvalidRequest("None of the checked lines can be served: try a dry run.", param="input_file_id")
    cost = outlook.cost_of(sample.work)
    low_s, high_s = (None, None) if cost is None else cost.told_s
    forecast_s = batch_forecast_s(outlook, asked.endpoint, tenant, sample.work)
    tiers: tuple[BatchTier, ...] = ("off_peak", "flex") if context.off_peak else ("flex",)
    expires_at = round(now + context.quotes.valid_s, 3)
    gpu_s = None if cost is None else cost.seconds
    with context.sessions() as session:
        withheld = withheld_levels(session, background=True).get(requests[0].served_by, frozenset())
        left = budgets.left(session, tenant, context.quotes.tier_prices)
    offers = [
        SignedOffer(tenant=tenant, body=_digest(asked), tier=tier, promise=promise, expires_at=expires_at)
        for tier in tiers
        for promise in promises(
            _within_s(context, tier, forecast_s, PROBABILITIES, now),
            withheld if _lasts(context, left, tenant, tier, gpu_s) else PROBABILITIES,
            context.quotes.price(tier, gpu_s),
            float(sample.work.tokens),
            digits=1,
        )
    ]
    return Quote(
        model=requests[0].model,
        expires_at=expires_at,
        prompt_tokens=sample.work.prefill,
        expected_tokens=sample.work.remaining,
        gpu_seconds=rounded(gpu_s),
        gpu_seconds_low=rounded(low_s),
        gpu_seconds_high=rounded(high_s),
        data=offers_of(context, offers),
    )


def _within_s(
    context: AppContext, tier: str, forecast_s: float | None, shares: tuple[float, ...], now: float
) -> list[float | None]:
    """Returns the seconds within which these shares of batches with this forecast end; None without evidence."""
    found = context.bulk_outlook.get().within_s(forecast_s, shares)
    hours: OffPeakHours | None = context.off_peak if tier == "off_peak" else None
    times = [one if one is None or hours is None else hours.after(now, one) - now for one in found]
    return [None if one is None or one > LONGEST_WINDOW_S else one for one in times]


def _lasts(context: AppContext, left: BudgetLeft | None, tenant: str, tier: str, gpu_s: float | None) -> bool:
    """Returns whether the tenant's budget lasts for its batches that have not ended and for one more of `gpu_s`."""
    if left is None:
        return True
    outlook = context.bulk_outlook.get()
    others_s = sum(outlook.used_s(work) or 0.0 for job, work in outlook.left.items() if job.tenant == tenant)
    price = 1.0 if left.unit == "gpu_s" else context.quotes.tier_prices.get(tier, 0.0)
    return (others_s + (gpu_s or 0.0)) * price < left.amount


def accepted_offer(context: AppContext, asked: CreateBatch, tenant: str, now: float) -> SignedOffer | None:
    """Returns the offer that a new batch accepts, None if it accepts none; raises QuoteUnusable."""
    if asked.magnus.quote is None:
        return None
    quoted = QuoteBatch(input_file_id=asked.input_file_id, endpoint=asked.endpoint)
    return read_offer(context, asked.magnus.quote, tenant, _digest(quoted), now)


def check_promise(
    context: AppContext,
    offer: SignedOffer,
    window_s: float,
    forecast_s: float | None,
    gpu_s: float | None,
    now: float,
) -> None:
    """Raises QuoteUnusable if a batch that is made now is no longer as likely to end in time as promised."""
    promise = offer.promise
    if promise.probability is None or promise.within_s is None:
        return
    if window_s < promise.within_s:
        why = f"The batch would expire before its answers are promised, in {promise.within_s:g} s."
        raise InvalidRequest(why, param="completion_window")
    (least_s,) = _within_s(context, offer.tier, forecast_s, (promise.probability - FALLEN,), now)
    left = in_session(context.sessions, budgets.left)(offer.tenant, context.quotes.tier_prices)
    refuse_outdated(promise, least_s if _lasts(context, left, offer.tenant, offer.tier, gpu_s) else None)


def _digest(asked: QuoteBatch) -> str:
    return canonical_digest(asked).hex()[:32]
