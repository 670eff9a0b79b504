"""The objects that the views of one app share; `create_app` makes them once and keeps them on the app."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Semaphore

from flask import current_app
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from models.bulk.bulk_outlook import BulkOutlook
from models.connections.held_pool import PoolWatch
from models.operations.promise_book import PromiseBook
from models.planning.queue_snapshot import QueueSnapshot
from models.planning.response_time_estimate import ResponseTimeEstimate
from models.tenants.api_keys import Caller
from off_peak_hours import OffPeakHours
from processes.ttl_cache import KeyedTtlCache, TtlCache
from protocol.limits.prompt_limits import PromptLimits
from webapp.limits.backlog_limits import BacklogLimit
from webapp.limits.quote_terms import QuoteTerms
from webapp.limits.rate_limits import RateLimit
from webapp.limits.upload_limits import UploadLimits
from webapp.waiting.grouped_inserts import GroupedInserts
from webapp.waiting.notices import Announcer
from webapp.waiting.token_feed import TokenFeed
from webapp.waiting.waiting_calls import WaitingCalls


@dataclass(frozen=True)
class AppContext:
    """The app's shared objects and the plain settings that its views need."""

    database: Engine
    pool_watch: PoolWatch  # watches the pool of `database`
    sessions: sessionmaker[Session]
    callers: KeyedTtlCache[bytes, Caller]  # by the SHA-256 of their keys
    prompt_limits: PromptLimits
    upload_limits: UploadLimits
    queue_snapshot: TtlCache[QueueSnapshot | None]  # None while no planner writes one
    response_times: TtlCache[ResponseTimeEstimate]
    promise_book: TtlCache[PromiseBook]  # of all tenants
    withheld_levels: TtlCache[dict[str, frozenset[float]]]  # by model, the probabilities at which nothing is promised
    bulk_outlook: TtlCache[BulkOutlook]
    tenant_turns: defaultdict[str, Semaphore]  # bound the connections that wait for one tenant's locks
    waiting_calls: WaitingCalls
    token_feed: TokenFeed
    rate_limit: RateLimit
    backlog_limit: BacklogLimit
    quotes: QuoteTerms
    announcer: Announcer
    inserts: GroupedInserts
    priority_requests: int  # most unfinished requests in the tier `priority` of a tenant without its own quota
    off_peak: OffPeakHours | None  # None: the service has no off-peak hours
    wait_s: float  # longest time in seconds that a call waits for its answer
    worker_alive_s: float  # a worker with an older heartbeat counts as lost
    private_webhooks: bool  # whether webhooks may go to addresses that only this network reaches
    close: Callable[[], None]  # closes the database connections


def current_context() -> AppContext:
    """Returns the context of the app that handles the current request."""
    context: AppContext = current_app.extensions["magnus"]
    return context
