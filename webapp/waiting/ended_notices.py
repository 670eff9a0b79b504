"""What the web process hears of requests that ended: the notifications of whoever ended them."""

import time
from collections.abc import Callable

import psycopg
import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.notifications import SAY_EVERY_S, Notifications, Unheard

# Where a pooler keeps notifications away, everything is looked at so often while a call waits. Half of it is added to
# an answer's time, and it costs a statement. Not tuned.
UNHEARD_S = 0.05

log = structlog.get_logger()


class EndedNotices:
    """Hears of ended requests over a connection of its own, made again after an error; one thread uses it."""

    def __init__(self, listen: Callable[[], Notifications]) -> None:
        self._listen = listen
        self._notifications: Notifications | None = None
        self._pooled = False
        self._say_at = 0.0

    def wait(self, within_s: float) -> set[str] | None:
        """The ids of requests that may have ended, none after `within_s`; None: any may have, so look at all."""
        try:
            if self._notifications is None and not self._pooled:
                self._notifications = self._listen()
                self._say_awaited(self._notifications)
                return None  # what ended before was not heard
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
        """Listen no more, until the next `wait`."""
        if self._notifications is not None:
            self._notifications.close()
            self._notifications = None
