"""Calls and streams that wait: one thread listens for all of them, and none of them holds a database connection."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Literal, Protocol

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.client_requests import RequestView
from protocol.client_errors import Busy, TooManyWaiting

log = structlog.get_logger()

# Seconds between two checks of all waiting requests: a notification may be lost, and not everything that ends a request
# sends one. A check costs one statement. Not tuned.
LOOK_AT_ALL_S = 1.0
POLLING_SHARE = 0.1  # share of one connection's time that these checks may take; a check of a thousand requests is slow
TURN_S = 0.25  # longest single wait for a notification; a stop may take as long
LINGER_S = 10.0  # the thread listens on after the last call, so that the next one need not connect; not tuned


class Notices(Protocol):
    """The source from which the thread hears which requests have ended."""

    def wait(self, within_s: float) -> set[str] | None:
        """Returns the ids heard within that time, or None if any request may have ended."""

    def close(self) -> None:
        """Stops listening until the next `wait`."""


class WaitingCall:
    """One call that waits for one request; any thread may wake it."""

    def __init__(self, id: str, changed: threading.Event | None = None) -> None:
        """Calls with the same `changed` are woken together."""
        self.id = id
        self.over: Literal["ended", "left", "stopping"] | None = None  # why the wait ended
        self.view: RequestView | None = None  # the ended request; None if it was deleted
        self._changed = changed or threading.Event()

    def wake(self) -> None:
        """Makes `wait` return."""
        self._changed.set()

    def leave(self) -> None:
        """Ends the wait because the client has disconnected."""
        self._end("left")

    def stop(self) -> None:
        """Ends the wait because the process is about to stop."""
        self._end("stopping")

    def finish(self, view: RequestView | None) -> None:
        """Ends the wait because the request has ended."""
        self._end("ended", view)

    def wait(self, within_s: float) -> bool:
        """Waits until the call is woken (now, if it was woken since the last wait); returns False after `within_s`."""
        woken = self._changed.wait(within_s)
        self._changed.clear()
        return woken

    def wait_until_over(self, within_s: float) -> None:
        """Waits until the call is over, at most for that time."""
        until = time.monotonic() + within_s
        while self.over is None and (left_s := until - time.monotonic()) > 0:
            self.wait(left_s)

    def _end(self, why: Literal["ended", "left", "stopping"], view: RequestView | None = None) -> None:
        if self.over is None:
            self.view, self.over = view, why  # `view` first: a thread that sees `over` then finds it
        self._changed.set()


class WaitingSlot(ExitStack):
    """A reserved slot; freed at the end of its `with` block or by `close`, whichever comes first."""

    def __init__(self, release: Callable[[], None]) -> None:
        super().__init__()
        self.callback(release)


class WaitingCalls:
    """The calls of this process that wait, in a bounded number."""

    def __init__(
        self,
        ended: Callable[[Collection[str]], Mapping[str, RequestView | None]],
        notices: Notices,
        *,
        max_calls: int,
        max_calls_of_tenant: int,
    ) -> None:
        """`ended` reads which of these requests are final, None for deleted ones; at most `max_calls` wait at once."""
        self._ended, self._notices = ended, notices
        self._max_calls, self._max_calls_of_tenant = max_calls, max_calls_of_tenant
        self._lock = threading.Lock()
        self._calls: dict[str, list[WaitingCall]] = {}
        self._slots: Counter[str] = Counter()  # reserved slots by tenant
        self._stopping = False
        self._thread: threading.Thread | None = None

    def reserve_slot(self, tenant: str) -> WaitingSlot:
        """Reserves a slot, held until it is closed; raises Busy, or TooManyWaiting if the tenant has no slot left."""
        with self._lock:
            if self._stopping:
                raise Busy("This process of the service is about to stop. Try again at once.")
            if self._slots[tenant] >= self._max_calls_of_tenant:
                raise TooManyWaiting(
                    f"{self._slots[tenant]:,} of your calls wait for answers already, as many as this service allows "
                    "one tenant (three quarters of MAGNUS_WAITING_CALLS). Send background=true and poll, or try again "
                    "shortly."
                )
            if self._slots.total() >= self._max_calls:
                raise Busy(
                    f"{self._max_calls:,} calls wait for answers already. "
                    "Send background=true and poll, or try again shortly."
                )
            self._slots[tenant] += 1
        return WaitingSlot(partial(self._release_slot, tenant))

    def _release_slot(self, tenant: str) -> None:
        with self._lock:
            self._slots[tenant] -= 1
            if not self._slots[tenant]:
                del self._slots[tenant]

    def begin(self, id: str, changed: threading.Event | None = None) -> WaitingCall:
        """Returns a call that waits for this request until `end`."""
        call = WaitingCall(id, changed)
        with self._lock:
            if self._stopping:
                call.stop()
                return call
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="waiting-calls", daemon=True)
                thread.start()  # may fail; the next call then starts another thread
                self._thread = thread
            self._calls.setdefault(id, []).append(call)
        return call

    def end(self, call: WaitingCall) -> None:
        """Ends a call's wait."""
        with self._lock:
            calls = self._calls.get(call.id, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                self._calls.pop(call.id, None)

    def stop(self) -> None:
        """Ends every wait, because the process is about to stop; calls get the present state."""
        with self._lock:
            self._stopping = True
            calls = [call for of_one in self._calls.values() for call in of_one]
        for call in calls:
            call.stop()

    def close(self) -> None:
        """Ends every wait and joins the thread."""
        self.stop()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        last_call_at, next_look_at, not_before = time.monotonic(), 0.0, 0.0
        while True:
            heard = self._notices.wait(TURN_S)
            began = time.monotonic()
            with self._lock:
                waiting = list(self._calls)
                if waiting:
                    last_call_at = began
                if self._stopping or began - last_call_at > LINGER_S:
                    self._notices.close()
                    self._thread = None
                    return
            look_at_all = began >= (not_before if heard is None else next_look_at)
            ids = waiting if look_at_all else [one for one in waiting if heard and one in heard]
            if ids:
                self._end_calls_for(ids)
            if look_at_all:
                took_s = time.monotonic() - began
                not_before = began + took_s / POLLING_SHARE
                next_look_at = max(not_before, began + LOOK_AT_ALL_S)

    def _end_calls_for(self, ids: Collection[str]) -> None:
        try:
            ended = self._ended(ids)
        except SQLAlchemyError as error:  # the next query may succeed; each call still ends at its own time limit
            log.warning("waiting_without_database", error=error)
            return
        with self._lock:
            over = [(call, view) for one, view in ended.items() for call in self._calls.get(one, ())]
        for call, view in over:
            call.finish(view)
