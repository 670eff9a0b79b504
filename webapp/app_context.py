"""What the views of one app share; made once in `create_app`, found on the app itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flask import current_app
from sqlalchemy.orm import Session, sessionmaker

from models.queue_position import QueueSnapshot
from models.response_time_estimate import ResponseTimeEstimate
from webapp.dashboard_overview import Overview
from webapp.prompt_limits import PromptLimits
from webapp.rate_limits import RateLimit
from webapp.ttl_cache import TtlCache
from webapp.waiting_calls import WaitingCalls


@dataclass(frozen=True)
class AppContext:
    """The app's own objects and the plain settings that views need."""

    sessions: sessionmaker[Session]
    served: PromptLimits
    rooms: TtlCache[QueueSnapshot | None]  # the planner's snapshot
    expectations: TtlCache[ResponseTimeEstimate]
    overviews: Mapping[str, TtlCache[Overview]]  # by the hours that its charts reach back
    waiters: WaitingCalls
    limit: RateLimit
    wait_s: float
    dashboard_password: str | None
    worker_alive_s: float
    close: Callable[[], None]  # gives the database's connections back


def context() -> AppContext:
    """The current app's."""
    found: AppContext = current_app.extensions["magnus"]
    return found
