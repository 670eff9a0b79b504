"""What the web process tells the predictors, and hears of requests that ended, by notifications of Postgres."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.notifications import NotificationsUnavailable
from processes.listening import Channel

# Shortest time between two announcements. Shorter takes more of
# Postgres's time, longer delays requests that come close together. A predictor looks every 0.05 s at most. Not tuned
# otherwise.
SPACING_S = 0.04

log = structlog.get_logger()

# Between two looks at everything while a call waits, where a pooler keeps notifications away. Half of it is added to
# an answer's time, and it costs a statement. Not tuned.
POLL_BEHIND_POOLER_S = 0.05


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
    """Hears of ended requests over a connection of its own; one thread uses it."""

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
