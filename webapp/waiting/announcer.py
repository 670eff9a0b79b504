"""Tells the predictors that requests were stored, beside the call that stored them and at most once in SPACING_S."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from sqlalchemy.exc import SQLAlchemyError

# A submission waits so long for its announcement if another one was announced just before. Shorter takes more of
# Postgres's time, longer delays requests that come close together. A predictor looks every 0.05 s at most. Not tuned
# otherwise.
SPACING_S = 0.04

log = structlog.get_logger()


class Announcer:
    """Announces what was stored; the thread starts with the first announcement."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="announcer")
        self._waiting = False  # whether an announcement is on its way that covers what is stored now

    def announce(self) -> None:
        """Return at once; what was stored before is announced soon."""
        if self._waiting:
            return
        self._waiting = True
        try:
            self._thread.submit(self._announce)
        except RuntimeError as error:  # this process is ending; what the call stored is accepted all the same
            log.warning("not announced", error=str(error))

    def close(self) -> None:
        """Return once nothing is announced any more."""
        self._thread.shutdown()

    def _announce(self) -> None:
        self._waiting = False  # whatever is stored from now on may come too late for this announcement
        try:
            self._notify()
        except SQLAlchemyError as error:  # beat's next tick does the same
            log.warning("not announced", error=str(error))
        time.sleep(SPACING_S)
