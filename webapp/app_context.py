"""The objects that the views of one app share; `create_app` makes them once and keeps them on the app."""

from collections.abc import Callable
from dataclasses import dataclass

from flask import current_app
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from models.bulk.bulk_outlook import BulkOutlook
from models.planning.queue_snapshot import QueueSnapshot
from models.planning.response_time_estimate import ResponseTimeEstimate
from models.tenants.api_keys import Caller
from webapp.bulk.file_upload import UploadLimits
from webapp.dashboard.company_sign_in import CompanySignIn
from webapp.dashboard.page_reads import PageReads
from webapp.limits.backlog_limits import BacklogLimit
from webapp.limits.prompt_limits import PromptLimits
from webapp.limits.rate_limits import RateLimit
from webapp.requests.grouped_inserts import GroupedInserts
from webapp.streaming.token_feed import TokenFeed
from webapp.ttl_cache import KeyedTtlCache, TtlCache
from webapp.waiting.notices import Announcer
from webapp.waiting.waiting_calls import WaitingCalls


@dataclass(frozen=True)
class AppContext:
    """The app's shared objects and the plain settings that its views need."""

    database: Engine
    sessions: sessionmaker[Session]
    callers: KeyedTtlCache[bytes, Caller]  # by the SHA-256 of their keys
    prompt_limits: PromptLimits
    upload_limits: UploadLimits
    queue_snapshot: TtlCache[QueueSnapshot | None]  # None while no planner writes one
    response_times: TtlCache[ResponseTimeEstimate]
    bulk_outlook: TtlCache[BulkOutlook]
    page_reads: PageReads  # the figures that pages of the dashboard share
    waiting_calls: WaitingCalls
    token_feed: TokenFeed
    rate_limit: RateLimit
    backlog_limit: BacklogLimit
    announcer: Announcer
    inserts: GroupedInserts
    priority_requests: int  # unfinished requests of the tier `priority` of a tenant without a quota of its own
    wait_s: float  # longest time in seconds that a call waits for its answer
    dashboard_password: str | None
    company: CompanySignIn  # sign-in by the company's accounts
    worker_alive_s: float  # a worker with an older heartbeat counts as lost
    private_webhooks: bool  # whether webhooks may go to addresses that only this network reaches
    close: Callable[[], None]  # closes the database connections


def current_context() -> AppContext:
    """Returns the context of the app that handles the current request."""
    context: AppContext = current_app.extensions["magnus"]
    return context
