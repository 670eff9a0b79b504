"""Offers promises for batches: the time by which the answers of a file are all there, in each tier of batches.

The times follow from the forecast of a batch that is made now and the errors of those of ended ones, in off-peak hours
alone for the tier `off_peak`. As for calls, an offer is accepted only while its promise still holds.
"""

import math
import secrets
from collections.abc import Iterator
from typing import Literal

from models.bulk.bulk_outlook import BulkOutlook
from models.bulk.bulk_tables import POOLING_ENDPOINTS, FilePurpose, StoredFile
from models.operations.promise_book import withheld_levels
from models.promise_tables import Promise
from models.tenants import budgets
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
from webapp.requests.quotes import FALLEN, PROBABILITIES, offers_of, read_offer, unusable

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
    offers = [
        SignedOffer(tenant=tenant, body=_digest(asked), tier=tier, promise=promise, expires_at=expires_at)
        for tier in tiers
        for promise in _promises(context, tenant, tier, sample.work, forecast_s, gpu_s, now)
    ]
    return Quote(
        model=requests[0].model,
        expires_at=expires_at,
        prompt_tokens=sample.work.prefill,
        expected_tokens=sample.work.remaining,
        gpu_seconds=None if gpu_s is None else float(f"{gpu_s:.4g}"),
        gpu_seconds_low=None if low_s is None else float(f"{low_s:.4g}"),
        gpu_seconds_high=None if high_s is None else float(f"{high_s:.4g}"),
        data=offers_of(context, offers),
    )


def _promises(
    context: AppContext,
    tenant: str,
    tier: BatchTier,
    work: Work,
    forecast_s: float | None,
    gpu_s: float | None,
    now: float,
) -> Iterator[Promise]:
    """Yields the time for each of PROBABILITIES by which the batch has ended, or else a price alone."""
    price, prices = context.quotes.price(tier, gpu_s), context.quotes.tier_prices
    with context.sessions() as session:
        withheld, left = withheld_levels(session, background=True), budgets.left(session, tenant, prices)
    times = _within_s(context, tier, forecast_s, PROBABILITIES, now)
    used = (gpu_s or 0.0) * (1.0 if left is None or left.unit == "gpu_s" else prices.get(tier, 0.0))
    pauses = left is not None and used > left.amount  # its tenant's budget would not last
    offered = [
        (level, seconds)
        for level, seconds in zip(PROBABILITIES, times, strict=True)
        if seconds is not None and seconds <= LONGEST_WINDOW_S and level not in withheld and not pauses
    ]
    for level, seconds in offered:
        yield Promise(secrets.token_urlsafe(12), level, math.ceil(10 * seconds) / 10, price, float(work.tokens))
    if price is not None and not offered:
        yield Promise(secrets.token_urlsafe(12), None, None, price, float(work.tokens))


def _within_s(
    context: AppContext, tier: str, forecast_s: float | None, shares: tuple[float, ...], now: float
) -> list[float | None]:
    """Returns the seconds within which these shares of batches with this forecast end; None without evidence."""
    found = context.bulk_outlook.get().within_s(forecast_s, shares)
    hours: OffPeakHours | None = context.off_peak if tier == "off_peak" else None
    return [one if one is None or hours is None else hours.after(now, one) - now for one in found]


def accepted_offer(context: AppContext, asked: CreateBatch, tenant: str, now: float) -> SignedOffer | None:
    """Returns the offer that a new batch accepts, None if it accepts none; raises QuoteUnusable."""
    if asked.magnus.quote is None:
        return None
    quoted = QuoteBatch(input_file_id=asked.input_file_id, endpoint=asked.endpoint)
    return read_offer(context, asked.magnus.quote, tenant, _digest(quoted), now)


def check_promise(
    context: AppContext, offer: SignedOffer, window_s: float, forecast_s: float | None, now: float
) -> None:
    """Raises QuoteUnusable if a batch that is made now is no longer as likely to end in time as promised."""
    promise = offer.promise
    if promise.probability is None or promise.within_s is None:
        return
    if window_s < promise.within_s:
        why = f"The batch would expire before its answers are promised, in {promise.within_s:g} s."
        raise InvalidRequest(why, param="completion_window")
    (least_s,) = _within_s(context, offer.tier, forecast_s, (promise.probability - FALLEN,), now)
    if least_s is None or least_s > promise.within_s:
        why = f"Work has come: an end within {promise.within_s:g} s is no longer as likely as it was quoted."
        raise unusable(f"{why} Ask for another quote.", "quote_outdated")


def _digest(asked: QuoteBatch) -> str:
    return canonical_digest(asked).hex()[:32]
