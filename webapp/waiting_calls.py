"""Calls that wait for their answer: one thread polls the database for all of them, and runs only while any waits."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection

import structlog
from sqlalchemy.exc import SQLAlchemyError

from webapp.client_errors import Busy, TooManyWaiting

log = structlog.get_logger()

# Adds half of this to a call's response time on average, and costs one statement each time while any call waits.
# Not tuned.
POLL_INTERVAL_S = 0.03
POLLING_SHARE = 0.1  # of one connection's time that may go into polling: a thousand waiting ids take longer; not tuned


class WaitingCalls:
    """Wakes calls when their requests are final; a waiting call keeps no database connection."""

    def __init__(
        self,
        finished: Callable[[Collection[str]], Collection[str]],
        *,
        max_calls: int,
        max_calls_of_tenant: int,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """`finished` returns those of the given request ids that are final; at most `max_calls` may wait at once."""
        self._finished = finished
        self._max_calls, self._max_calls_of_tenant = max_calls, max_calls_of_tenant
        self._poll_interval_s = poll_interval_s
        self._lock = threading.Lock()
        self._events: dict[str, list[threading.Event]] = {}
        self._waiting: Counter[str] = Counter()  # reserved slots by tenant
        self._stopped = threading.Event()
        self._polling = False

    def reserve_slot(self, tenant: str) -> None:
        """Reserve a slot before the request is stored; raises Busy if none is free, TooManyWaiting if too many are its.

        Each reserved slot needs one `release_slot`.
        """
        with self._lock:
            if self._stopped.is_set():
                raise Busy("This process of the service is about to stop. Try again at once.")
            if self._waiting[tenant] >= self._max_calls_of_tenant:
                raise TooManyWaiting(
                    f"{self._waiting[tenant]:,} of your calls wait for answers already, as many as this service allows "
                    "one tenant (MAGNUS_TENANT_WAITING_CALLS). Send background=true and poll, or try again shortly."
                )
            if self._waiting.total() >= self._max_calls:
                raise Busy(
                    f"{self._max_calls:,} calls wait for answers already. "
                    "Send background=true and poll, or try again shortly."
                )
            self._waiting[tenant] += 1

    def release_slot(self, tenant: str) -> None:
        """Free a reserved slot."""
        with self._lock:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def wait(self, id: str, timeout_s: float) -> bool:
        """Block until the request is final; False if it is not after `timeout_s`, or when the process stops."""
        event = threading.Event()
        with self._lock:
            if self._stopped.is_set():
                return False
            self._events.setdefault(id, []).append(event)
            if not self._polling:
                self._polling = True
                threading.Thread(target=self._poll, name="waiting-calls", daemon=True).start()
        try:
            return event.wait(timeout_s) and not self._stopped.is_set()
        finally:
            with self._lock:
                waiting = self._events.get(id, [])
                if event in waiting:
                    waiting.remove(event)
                if not waiting:
                    self._events.pop(id, None)

    def stop(self) -> None:
        """End every wait now: the process is about to stop, and its calls are answered with what there is."""
        with self._lock:
            self._stopped.set()
            for events in self._events.values():
                for event in events:
                    event.set()

    def _poll(self) -> None:
        while True:
            with self._lock:
                ids = list(self._events)
                if not ids or self._stopped.is_set():
                    self._polling = False
                    return
            began = time.monotonic()
            try:
                finished = self._finished(ids)
            except SQLAlchemyError as error:  # the database is away: each call still ends at its own time limit
                log.warning("waiting_without_database", error=error)
                finished = ()
            with self._lock:
                for request_id in finished:
                    for event in self._events.get(request_id, []):
                        event.set()
            self._stopped.wait(max(self._poll_interval_s, (time.monotonic() - began) / POLLING_SHARE))
