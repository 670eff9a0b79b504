"""Offers promises for a request, accepts them, and refuses deadlines that are unlikely to be kept.

An offer follows from the order of the queue as it is. Accepting one changes no order: the request is served like any
other of its tier. So that no more is promised than can be kept, an offer is accepted only while its promise still holds
by the queue of that moment, in which earlier promises wait.
"""

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from models.new_requests import NewRequest
from models.planning.queue_snapshot import QueueSnapshot
from models.promise_tables import Promise
from models.tenants import tenant_limits
from protocol.client_errors import DeadlineInfeasible, InvalidRequest, QuoteUnusable
from protocol.quotes.quote_objects import Offer, Quote
from protocol.requests.submission import Submission, canonical_digest
from scheduling.request import TIER_LEVELS, ServiceTier
from webapp.context.app_context import AppContext
from webapp.limits.quote_terms import SignedOffer

PROBABILITIES = (0.5, 0.9, 0.95)
# An offer is accepted while the chance of its promise is at most this much lower than promised: the queue of the next
# moment is never the same. A larger value sells promises that are missed more often. Not tuned.
FALLEN = 0.05
# Fields of a body that may differ between the quote and the call: the tier is the offer's.
DIFFERS = {
    "service_tier": True,
    "stream": True,
    "stream_options": True,
    "background": True,
    "store": True,
    "magnus": {"quote", "best_effort", "deadline_s"},
}


def quote_for(context: AppContext, submission: Submission, new: NewRequest, now: float) -> Quote:
    """Returns the offers of each tier that the tenant may use, for a checked request."""
    snapshot, expires_at = context.queue_snapshot.get(), round(now + context.quotes.valid_s, 3)
    with context.sessions() as session:
        token_gpu_s = tenant_limits.token_gpu_s(session, new.tenant, new.model)
        tiers = _tiers(context, session, new.tenant)
    work = context.response_times.get().work(new, token_gpu_s)
    told = (None,) * 4 if work is None else (work.tokens, work.gpu_s, work.low_s, work.high_s)
    tokens, gpu_s, low_s, high_s = map(rounded, told)
    length = None if work is None else round(work.tokens, 1)
    withheld = context.withheld_levels.get().get(new.served_by, frozenset())
    offers = [
        SignedOffer(tenant=new.tenant, body=_digest(submission), tier=tier, promise=promise, expires_at=expires_at)
        for tier in tiers
        for promise in promises(
            _within_s(context, replace(new, tier=tier), snapshot, now, PROBABILITIES),
            withheld,
            context.quotes.price(tier, None if work is None else work.gpu_s),
            length,
            digits=3,
        )
    ]
    return Quote(
        model=submission.model,
        expires_at=expires_at,
        prompt_tokens=new.prompt_tokens,
        expected_tokens=tokens,
        gpu_seconds=gpu_s,
        gpu_seconds_low=low_s,
        gpu_seconds_high=high_s,
        data=offers_of(context, offers),
    )


def offers_of(context: AppContext, offers: Sequence[SignedOffer]) -> list[Offer]:
    """Returns offers as clients read and accept them."""
    return [
        Offer(
            id=context.quotes.sign(one),
            service_tier=one.tier,
            within_s=one.promise.within_s,
            probability=one.promise.probability,
            price=one.promise.price,
        )
        for one in offers
    ]


def _within_s(
    context: AppContext, new: NewRequest, snapshot: QueueSnapshot | None, now: float, levels: Sequence[float]
) -> Sequence[float | None]:
    """Returns the times that can be promised at these levels: none to background work, nor while a budget is spent."""
    # nobody knows when others leave capacity to background work
    if waits_for_budget(new, snapshot) or TIER_LEVELS[new.tier] < 0:
        return [None for _ in levels]
    return context.response_times.get().within_s(new, snapshot, now, levels)


def waits_for_budget(new: NewRequest, snapshot: QueueSnapshot | None) -> bool:
    """Returns whether a new request waits until its tenant's budget is raised or begins anew."""
    return snapshot is not None and new.tenant in snapshot.decisions.spent_tenants


def promises(
    times: Sequence[float | None], withheld: Collection[float], price: float | None, tokens: float | None, digits: int
) -> list[Promise]:
    """Returns promises of these times in seconds, one for each of PROBABILITIES, or else of the price alone.

    Leaves out withheld levels, and rounds times up to `digits` decimals.
    """
    offered = [
        (level, math.ceil(seconds * 10**digits) / 10**digits)
        for level, seconds in zip(PROBABILITIES, times, strict=True)
        if seconds is not None and level not in withheld
    ]
    if price is not None and not offered:
        return [Promise(secrets.token_urlsafe(12), None, None, price, tokens)]
    return [Promise(secrets.token_urlsafe(12), level, seconds, price, tokens) for level, seconds in offered]


def rounded(amount: float | None) -> float | None:
    """Returns an amount with four digits."""
    return None if amount is None else float(f"{amount:.4g}")


def accepted_offer(context: AppContext, submission: Submission, now: float) -> SignedOffer | None:
    """Returns the offer that a call accepts, None if it accepts none; raises QuoteUnusable."""
    if submission.quote is None:
        return None
    return read_offer(context, submission.quote, submission.tenant, _digest(submission), now)


def read_offer(context: AppContext, quote: str, tenant: str, body: str, now: float) -> SignedOffer:
    """Returns the offer of a quote that a tenant accepts with a body of this digest; raises QuoteUnusable."""
    offer = context.quotes.read(quote)
    if offer is None or offer.tenant != tenant:
        raise unusable("This is no quote that this service made for you.", "quote_unknown")
    if offer.expires_at < now:
        ago_s = now - offer.expires_at
        raise unusable(f"This quote ended {ago_s:,.0f} s ago: ask for another one.", "quote_expired")
    if offer.body != body:
        raise unusable("This quote is for another body: send the one that was quoted.", "quote_of_another_body")
    return offer


def check_promise(
    context: AppContext, promise: Promise, new: NewRequest, snapshot: QueueSnapshot | None, now: float
) -> None:
    """Raises QuoteUnusable if a request that comes now is no longer as likely answered in time as promised.

    Raises InvalidRequest if it would fail before: a client that fails its own promises takes quotes from all tenants.
    """
    if promise.within_s is not None and new.deadline_s is not None and new.deadline_s < promise.within_s:
        why = f"The request would fail before its answer is promised, in {promise.within_s:g} s."
        raise InvalidRequest(why, param="magnus.deadline_s")
    if promise.probability is not None:
        refuse_outdated(promise, *_within_s(context, new, snapshot, now, [promise.probability - FALLEN]))


def refuse_outdated(promise: Promise, least_s: float | None) -> None:
    """Raises QuoteUnusable if the answers are not likely there within the promised time; None: nobody knows when."""
    if promise.within_s is not None and (least_s is None or least_s > promise.within_s):
        why = f"an end within {promise.within_s:g} s is no longer as likely as it was quoted"
        raise unusable(f"The queue or your budget has changed: {why}. Ask for another quote.", "quote_outdated")


def refuse_infeasible(
    context: AppContext, deadline_s: float, new: NewRequest, snapshot: QueueSnapshot | None, now: float
) -> None:
    """Raises DeadlineInfeasible if requests wait and the answer is likely too late; says when it is likely there."""
    chance, order = context.quotes.min_deadline_chance, snapshot.order(new.served_by) if snapshot else None
    if not chance or order is None or not order.waiting:
        return
    likely_s = context.response_times.get().likely_s(new, snapshot, now, chance)
    if likely_s is None or likely_s <= deadline_s:
        return
    earliest_s = math.ceil(likely_s * 10) / 10
    raise DeadlineInfeasible(
        f"An answer within {deadline_s:g} s is unlikely: {chance:.0%} of such answers now come in {earliest_s:g} s. "
        "Give it that time, or send best_effort: true beside it.",
        earliest_s,
    )


def _digest(submission: Submission) -> str:
    return canonical_digest(submission.sent, DIFFERS).hex()[:32]


def _tiers(context: AppContext, session: Session, tenant: str) -> list[ServiceTier]:
    preferred = tenant_limits.has_preference_left(session, tenant, context.priority_requests)
    usable = {"priority": preferred, "off_peak": bool(context.off_peak)}
    return [tier for tier in TIER_LEVELS if usable.get(tier, True)]


def unusable(message: str, code: str) -> QuoteUnusable:
    """Returns the error of a quote that cannot be accepted."""
    return QuoteUnusable(message, param="magnus.quote", code=code)
