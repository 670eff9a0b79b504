"""Calls that wait for their answer: one thread asks the database for all of them, only while somebody waits."""

import threading
from collections.abc import Callable, Collection

import structlog
from sqlalchemy.exc import SQLAlchemyError

from webapp.client_errors import Busy

log = structlog.get_logger()


class WaitingCalls:
    """Wakes calls when their requests are final; holds no connection for them, and refuses more than it may hold."""

    def __init__(
        self, finished: Callable[[Collection[str]], Collection[str]], *, most: int, every_s: float = 0.03
    ) -> None:
        """`finished` tells which of some requests are final; `most` calls may wait at once, others still pass."""
        self._finished = finished
        self._most = most
        self._every_s = every_s
        self._lock = threading.Lock()
        self._events: dict[str, list[threading.Event]] = {}
        self._places = threading.BoundedSemaphore(most)
        self._watching = False

    def reserve(self) -> None:
        """Take a place before anything is stored; raises Busy when all are taken. Each needs a `release`."""
        if not self._places.acquire(blocking=False):
            raise Busy(
                f"{self._most} calls wait for answers already. Send background=true and poll, or try again shortly."
            )

    def release(self) -> None:
        """Give the place back."""
        self._places.release()

    def wait(self, id: str, timeout_s: float) -> bool:
        """Block until the request is final; False if it is not after `timeout_s`."""
        event = threading.Event()
        with self._lock:
            self._events.setdefault(id, []).append(event)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="waiters", daemon=True).start()
        try:
            return event.wait(timeout_s)
        finally:
            with self._lock:
                waiting = self._events.get(id, [])
                if event in waiting:
                    waiting.remove(event)
                if not waiting:
                    self._events.pop(id, None)

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            with self._lock:
                ids = list(self._events)
                if not ids:
                    self._watching = False
                    return
            try:
                finished = self._finished(ids)
            except SQLAlchemyError as error:  # the database is away: the calls' own time limits still hold
                log.warning("waiting_without_database", error=str(error))
                finished = ()
            with self._lock:
                for request_id in finished:
                    for event in self._events.get(request_id, []):
                        event.set()
            pause.wait(self._every_s)
