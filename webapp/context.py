"""What the views of one app share; made once in `create_app`, found on the app itself."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flask import current_app
from sqlalchemy.orm import Session, sessionmaker

from models.queue import WaitingRoom, read_waiting_room
from webapp.prompts import Served
from webapp.waiting import Waiters


class WaitingRoomCache:
    """The planner's snapshot, read at most twice a second however many clients poll."""

    def __init__(self, sessions: sessionmaker[Session], keep_s: float = 0.5) -> None:
        self._sessions = sessions
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._room: WaitingRoom | None = None

    def get(self) -> WaitingRoom | None:
        """The last snapshot; None if there is none that is worth anything."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at > self._keep_s:
                with self._sessions() as session:
                    self._room = read_waiting_room(session)
                self._read_at = time.monotonic()
            return self._room


@dataclass(frozen=True)
class Context:
    """The app's own objects and the plain settings that views need."""

    sessions: sessionmaker[Session]
    served: Served
    rooms: WaitingRoomCache
    waiters: Waiters
    wait_s: float
    dashboard_password: str | None
    worker_alive_s: float
    close: Callable[[], None]  # gives the database's connections back


def context() -> Context:
    """The current app's."""
    found: Context = current_app.extensions["magnus"]
    return found
