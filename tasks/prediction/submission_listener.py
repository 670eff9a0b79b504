"""Hears of new requests through Postgres, so that they are predicted at once and an idle predictor does nothing."""

from collections.abc import Callable
from threading import Event, Thread

import psycopg
import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.notifications import SUBMITTED, Notifications, Unheard

# Between two looks, so that requests that arrive close together are predicted together. It is the mean wait that a tick
# every 0.1 s would cost a request, and only requests that follow another one pay it. Not tuned otherwise.
SPACING_S = 0.05
WAIT_S = 1.0  # how often a listener in vain looks whether it is to stop; any value that a stop may take does
RECONNECT_S = 1.0  # after an error; beat's ticks do the work meanwhile

log = structlog.get_logger()


class SubmissionListener(Thread):
    """Calls `look` soon after each submission."""

    def __init__(self, engine: Engine, look: Callable[[], None], on_unheard: Callable[[], None]) -> None:
        """`on_unheard` is called once if a pooler keeps notifications away; the thread then ends."""
        super().__init__(name="submissions", daemon=True)
        self._engine, self._look, self._on_unheard = engine, look, on_unheard
        self._stopping = Event()

    def run(self) -> None:
        """Listen until stopped, and again after an error."""
        while not self._stopping.is_set():
            try:
                submissions = Notifications(self._engine, SUBMITTED)
            except Unheard:
                log.info("no notifications through a pooler", remedy="none needed: the predictor looks often instead")
                return self._on_unheard()
            except SQLAlchemyError as error:
                log.warning("not listening", error=str(error))
            else:
                self._listen(submissions)
            self._stopping.wait(RECONNECT_S)

    def stop(self) -> None:
        """Return once it neither listens nor looks; within `WAIT_S` or one look."""
        self._stopping.set()
        self.join()

    def _listen(self, submissions: Notifications) -> None:
        """Until stopped or an error."""
        try:
            self._look()  # at what was submitted before
            while not self._stopping.is_set():
                if submissions.wait(WAIT_S):
                    self._look()
                    self._stopping.wait(SPACING_S)
        except (SQLAlchemyError, psycopg.Error) as error:
            log.warning("not listening", error=str(error))
        finally:
            submissions.close()
