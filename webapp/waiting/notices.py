"""The web process's Postgres notifications: announces stored requests to predictors, receives ended requests."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.notifications import NotificationsUnavailable
from processes.listening import Channel

# Shortest time between two announcements. A shorter one costs Postgres more, a longer one delays requests close behind
# others. A predictor checks every 0.05 s at most. Not tuned otherwise.
SPACING_S = 0.04

log = structlog.get_logger()

# Seconds between two queries for waiting calls if a pooler blocks notifications. Half of it is added to an answer's
# time on average. Not tuned.
POLL_BEHIND_POOLER_S = 0.05


class Announcer:
    """Announces stored requests to the predictors, in a thread that starts with the first announcement."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="announcer")
        self._waiting = False  # whether a scheduled announcement covers the present requests

    def announce(self) -> None:
        """Schedules an announcement of all requests stored so far; returns at once."""
        if self._waiting:
            return
        self._waiting = True
        try:
            self._thread.submit(self._announce)
        except RuntimeError as error:  # this process is ending; the stored request is still accepted
            log.warning("not announced", error=str(error))

    def close(self) -> None:
        """Waits until the last announcement is sent."""
        self._thread.shutdown()

    def _announce(self) -> None:
        self._waiting = False  # requests stored from now on need another announcement
        try:
            self._notify()
        except SQLAlchemyError as error:  # predictors also check at beat's next tick
            log.warning("not announced", error=str(error))
        time.sleep(SPACING_S)


class EndedNotices:
    """Receives notifications of ended requests over its own connection; one thread uses it."""

    def __init__(self, channel: Channel[str]) -> None:
        self._channel = channel
        self._pooled = False

    def wait(self, within_s: float) -> set[str] | None:
        """Returns the ids of requests that may have ended, after at most `within_s`; None if any may have ended."""
        if not self._pooled:
            try:
                payloads = self._channel.wait(within_s)
                return None if payloads is None else set(" ".join(payloads).split())
            except NotificationsUnavailable:
                log.info("no notifications through a pooler", remedy="none needed: waiting calls look often instead")
                self._pooled = True
        time.sleep(min(within_s, POLL_BEHIND_POOLER_S))
        return None

    def close(self) -> None:
        """Stops listening until the next `wait`."""
        self._channel.close()
