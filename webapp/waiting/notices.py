"""Announces new requests to the predictors and hears of ended requests, by notifications of Postgres."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.notifications import NotificationsUnavailable
from processes.listening import Channel

# Shortest time between two announcements. A shorter one takes more of Postgres's time, a longer one delays requests
# that come close together. A predictor checks at most every 0.05 s. Not tuned otherwise.
SPACING_S = 0.04

log = structlog.get_logger()

# Seconds between two checks of all waiting requests, where a pooler keeps notifications away. An answer is late by half
# of this time on average, and a check costs one statement. Not tuned.
POLL_BEHIND_POOLER_S = 0.05


class Announcer:
    """Announces stored requests to the predictors, in a thread that starts with the first announcement."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="announcer")
        self._waiting = False  # whether an announcement that covers the requests stored by now is still to be sent

    def announce(self) -> None:
        """Schedules an announcement of all requests stored so far; returns at once."""
        if self._waiting:
            return
        self._waiting = True
        try:
            self._thread.submit(self._announce)
        except RuntimeError as error:  # no thread starts, or this process ends; the stored request is still accepted
            self._waiting = False
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
        """Returns the ids of requests that may have ended, after at most `within_s`, or None if any may have ended."""
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
