"""Calls that wait for their answer: one thread polls the database for all of them, and runs only while any waits."""

import threading
from collections.abc import Callable, Collection

import structlog
from sqlalchemy.exc import SQLAlchemyError

from webapp.client_errors import Busy

log = structlog.get_logger()

# Adds half of this to a call's response time on average, and costs one statement each time while any call waits.
# Not tuned.
POLL_INTERVAL_S = 0.03


class WaitingCalls:
    """Wakes calls when their requests are final; a waiting call keeps no database connection."""

    def __init__(
        self,
        finished: Callable[[Collection[str]], Collection[str]],
        *,
        max_calls: int,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """`finished` returns those of the given request ids that are final; at most `max_calls` may wait at once."""
        self._finished = finished
        self._max_calls = max_calls
        self._poll_interval_s = poll_interval_s
        self._lock = threading.Lock()
        self._events: dict[str, list[threading.Event]] = {}
        self._slots = threading.BoundedSemaphore(max_calls)
        self._polling = False

    def reserve_slot(self) -> None:
        """Reserve one of `max_calls` slots before the request is stored; raises Busy if none is free.

        Each reserved slot needs one `release_slot`.
        """
        if not self._slots.acquire(blocking=False):
            raise Busy(
                f"{self._max_calls} calls wait for answers already. "
                "Send background=true and poll, or try again shortly."
            )

    def release_slot(self) -> None:
        """Free a reserved slot."""
        self._slots.release()

    def wait(self, id: str, timeout_s: float) -> bool:
        """Block until the request is final; False if it is not after `timeout_s`."""
        event = threading.Event()
        with self._lock:
            self._events.setdefault(id, []).append(event)
            if not self._polling:
                self._polling = True
                threading.Thread(target=self._poll, name="waiting-calls", daemon=True).start()
        try:
            return event.wait(timeout_s)
        finally:
            with self._lock:
                waiting = self._events.get(id, [])
                if event in waiting:
                    waiting.remove(event)
                if not waiting:
                    self._events.pop(id, None)

    def _poll(self) -> None:
        pause = threading.Event()
        while True:
            with self._lock:
                ids = list(self._events)
                if not ids:
                    self._polling = False
                    return
            try:
                finished = self._finished(ids)
            except SQLAlchemyError as error:  # the database is away: each call still ends at its own time limit
                log.warning("waiting_without_database", error=error)
                finished = ()
            with self._lock:
                for request_id in finished:
                    for event in self._events.get(request_id, []):
                        event.set()
            pause.wait(self._poll_interval_s)
