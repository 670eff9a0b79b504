"""Stores the request of a valid body, for every call that submits; reads none of Flask's globals."""

import math
import time
from dataclasses import replace

from sqlalchemy.orm import Session

from models import new_requests
from models.client_requests import RequestView
from models.connections.session import in_session
from models.new_requests import Charge, NewRequest
from models.planning.queue_snapshot import QueueSnapshot
from models.request_predictions import scoped_application
from models.tenants import tenant_limits
from models.tenants.tenant_limits import TenantBacklog, WorkExceeded
from protocol.client_errors import DeadlineInfeasible, InvalidRequest, QuoteUnusable, WorkRateReached
from protocol.requests.submission import Submission, accepted_request, canonical_digest, checked_key
from request_body import readable_body
from scheduling.request import BACKGROUND_TIERS
from webapp.context.app_context import AppContext
from webapp.requests.quotes import accepted_offer, check_promise, refuse_infeasible, waits_for_budget


def submit(context: AppContext, submission: Submission) -> RequestView:
    """Stores a request, once for each Idempotency-Key; raises a ClientError for a request that cannot be accepted."""
    return store(context, submission, new_request(context, submission))


def store(context: AppContext, submission: Submission, new: NewRequest, part: str = "") -> RequestView:
    """Stores a checked request; `part` is added to the Idempotency-Key, so that each request of a call has its own."""
    key = checked_key(submission.idempotency_key)
    digest = None if key is None else canonical_digest(submission.sent)
    key = None if key is None else key + part
    one = TenantBacklog(1, new.prompt_tokens, new.size_bytes)
    admitted = context.backlog_limit.admit(new.tenant, one, time.monotonic())
    with admitted:
        view = _insert(context, new, key, digest)
    context.announcer.announce()
    deleted = view.request.status.final and not view.request.input and not readable_body(view.request.body).store
    if deleted:
        raise InvalidRequest(
            f"The answer of {view.request.id}, which has this Idempotency-Key, was not to be stored and is deleted. "
            "Send another key for a new answer.",
            param="Idempotency-Key",
            code="response_not_stored",
        )
    return view


def _insert(context: AppContext, new: NewRequest, key: str | None, digest: bytes | None) -> RequestView:
    if new.tier != "priority" and new.charge is None and new.promise is None:
        if key is None:
            return context.inserts.store(new)
        with context.database.connect() as connection:
            return new_requests.submit(connection, new, idempotency_key=key, digest=digest)
    with context.tenant_turns[new.tenant], context.sessions() as session:
        if new.tier != "priority" and new.charge is None:  # otherwise the checks begin a transaction
            session.connection(execution_options={"isolation_level": "READ COMMITTED"})
        new = within_work_limits(session, new)
        if new.tier == "priority":
            new = within_quota(session, new, context.priority_requests)
        try:
            view = new_requests.submit(session.connection(), new, idempotency_key=key, digest=digest)
        except new_requests.QuoteUsed as used:
            raise QuoteUnusable(str(used), param="magnus.quote", code="quote_used") from used
        session.commit()
    return view


def check_tier(context: AppContext, tier: str | None) -> None:
    """Raises InvalidRequest for the tier `off_peak` of a service that has no off-peak hours."""
    if tier == "off_peak" and not context.off_peak:
        why = (
            "This service has no off-peak hours: its operator sets them as MAGNUS_OFF_PEAK. flex is served at any hour."
        )
        raise InvalidRequest(why, param="service_tier")


def within_work_limits(session: Session, new: NewRequest) -> NewRequest:
    """Returns the request with its charge; raises WorkRateReached if it exceeds a limit of its tenant."""
    if new.charge is None:
        return new
    try:
        token_gpu_s = tenant_limits.check_work(session, new.tenant, new.model, new.charge.tokens)
    except WorkExceeded as exceeded:
        retry_after_s = max(1, math.ceil(exceeded.fits_in_s))
        raise WorkRateReached(
            f"Your requests of the last minute are expected to take {exceeded.charged:,.12g} of {exceeded.most:,} "
            f"{exceeded.unit} a minute, and this one {round(exceeded.asked, 3):,.12g}. Try again in {retry_after_s} s.",
            retry_after_s=retry_after_s,
        ) from exceeded
    return replace(new, charge=replace(new.charge, token_gpu_s=token_gpu_s))


def within_quota(session: Session, new: NewRequest, most: int) -> NewRequest:
    """Returns a request of the tier `priority` as it is, or in the tier `default` if its tenant may have no more.

    Raises QuoteUnusable instead if the tier was promised.
    """
    if tenant_limits.may_prefer(session, new.tenant, most):
        return new
    if new.promise is not None:
        why = "Since this quote you sent as many requests of the tier priority as you may have at once."
        raise QuoteUnusable(f"{why} Ask for another quote.", param="magnus.quote", code="quote_outdated")
    return replace(new, tier="default")


def new_request(context: AppContext, submission: Submission) -> NewRequest:
    """Returns the row to insert, with its ETA; raises a ClientError for a request that cannot be accepted.

    A repeat gets its earlier request, also if its quote is over or its deadline is unlikely to be kept by now. Should
    that be deleted before this one is stored, this one is stored without the quote.
    """
    try:
        return _new_request(context, submission)
    except (QuoteUnusable, DeadlineInfeasible):
        key = checked_key(submission.idempotency_key)
        if key is None or not in_session(context.sessions, new_requests.is_repeat)(submission.tenant, key):
            raise
        return _new_request(context, replace(submission, quote=None, best_effort=True))


def _new_request(context: AppContext, submission: Submission) -> NewRequest:
    now = time.time()
    offer = accepted_offer(context, submission, now)
    if offer is not None:
        submission = replace(submission, service_tier=offer.tier)
    new, snapshot = checked_request(context, submission)
    new = replace(new, charge=charge_of(context, new))
    if offer is not None:
        check_promise(context, offer.promise, new, snapshot, now)
        new = replace(new, promise=offer.promise)
    # background work and requests that generate no text get no forecast here
    if new.kind != "answer" or new.tier in BACKGROUND_TIERS:
        return new
    if submission.deadline_s is not None and not submission.best_effort:
        refuse_infeasible(context, submission.deadline_s, new, snapshot, now)
    if waits_for_budget(new, snapshot):
        return new
    return replace(new, eta=context.response_times.get().eta(new, snapshot, now))


def charge_of(context: AppContext, new: NewRequest) -> Charge | None:
    """Returns what counts against the tenant's limits of work; None for a tenant without such limits."""
    if new.kind != "answer" or not context.backlog_limit.limits_of(new.tenant).of_work:
        return None
    times, application = context.response_times.get(), scoped_application(new.tenant, new.application)
    expected = times.answer_tokens(application, new.input_tokens, new.limit_tokens)
    charged = new.limit_tokens if expected is None else max(1, round(expected))
    return Charge(charged, assumed=not times.knows(application))


def checked_request(context: AppContext, submission: Submission) -> tuple[NewRequest, QueueSnapshot | None]:
    """Returns the row of a request that can be accepted, and the queue that it was checked by; raises ClientError."""
    check_tier(context, submission.service_tier)
    snapshot, limits = context.queue_snapshot.get(), context.prompt_limits
    new = accepted_request(limits, snapshot, submission)
    if snapshot is not None:
        state = snapshot.of(new.served_by)
        limits.check_served(new.served_by, state.unserved_s, state.unserved)
    return new, snapshot
