"""What the web process tells the predictors, and hears of requests that ended, by notifications of Postgres."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.notifications import SAY_EVERY_S, Notifications, Unheard

# Shortest time between two announcements. Shorter takes more of
# Postgres's time, longer delays requests that come close together. A predictor looks every 0.05 s at most. Not tuned
# otherwise.
SPACING_S = 0.04

log = structlog.get_logger()


# Where a pooler keeps notifications away, everything is looked at so often while a call waits. Half of it is added to
# an answer's time, and it costs a statement. Not tuned.
UNHEARD_S = 0.05


class Announcer:
    """Announces stored requests to the predictors, in a thread that starts with the first announcement."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="announcer")
        self._waiting = False  # whether an announcement is on its way that covers what is stored now

    def announce(self) -> None:
        """Schedules an announcement of all requests stored so far; returns at once."""
        if self._waiting:
            return
        self._waiting = True
        try:
            self._thread.submit(self._announce)
        except RuntimeError as error:  # this process is ending; the stored request is accepted all the same
            log.warning("not announced", error=str(error))

    def close(self) -> None:
        """Waits until the last announcement is sent."""
        self._thread.shutdown()

    def _announce(self) -> None:
        self._waiting = False  # whatever is stored from now on may come too late for this announcement
        try:
            self._notify()
        except SQLAlchemyError as error:  # beat's next tick makes the predictors look, too
            log.warning("not announced", error=str(error))
        time.sleep(SPACING_S)


class EndedNotices:
    """Hears of ended requests over a connection of its own, made again after an error; one thread uses it."""

    def __init__(self, listen: Callable[[], Notifications]) -> None:
        self._listen = listen
        self._notifications: Notifications | None = None
        self._pooled = False
        self._say_at = 0.0

    def wait(self, within_s: float) -> set[str] | None:
        """Returns the ids of requests that may have ended, after at most `within_s`; None if any may have ended."""
        try:
            if self._notifications is None and not self._pooled:
                self._notifications = self._listen()
                self._say_awaited(self._notifications)
                return None  # notifications sent before this connection was made are lost
            if self._notifications is not None:
                if time.monotonic() >= self._say_at:
                    self._say_awaited(self._notifications)
                return set(" ".join(self._notifications.wait(within_s)).split())
        except Unheard:
            log.info("no notifications through a pooler", remedy="none needed: waiting calls look often instead")
            self._pooled = True
        except (SQLAlchemyError, psycopg.Error) as error:
            log.warning("not listening", error=str(error))
            self.close()
        time.sleep(min(within_s, UNHEARD_S) if self._pooled else within_s)
        return None

    def _say_awaited(self, notifications: Notifications) -> None:
        notifications.say_awaited()
        self._say_at = time.monotonic() + SAY_EVERY_S

    def close(self) -> None:
        """Stops listening until the next `wait`."""
        if self._notifications is not None:
            self._notifications.close()
            self._notifications = None
