"""What the views of one app share; made once in `create_app`, found on the app itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flask import current_app
from sqlalchemy.orm import Session, sessionmaker

from models.expectation import Expectation
from models.queue import WaitingRoom
from webapp.limits import RateLimit
from webapp.overview import Overview
from webapp.prompts import Served
from webapp.recent import Recent
from webapp.waiting import Waiters


@dataclass(frozen=True)
class Context:
    """The app's own objects and the plain settings that views need."""

    sessions: sessionmaker[Session]
    served: Served
    rooms: Recent[WaitingRoom | None]  # the planner's snapshot
    expectations: Recent[Expectation]
    overviews: Mapping[str, Recent[Overview]]  # by the hours that its charts reach back
    waiters: Waiters
    limit: RateLimit
    wait_s: float
    dashboard_password: str | None
    worker_alive_s: float
    close: Callable[[], None]  # gives the database's connections back


def context() -> Context:
    """The current app's."""
    found: Context = current_app.extensions["magnus"]
    return found
