"""Listening to a channel of Postgres or of the broker: one loop that subscribes again after an error.

Messages sent while nobody listens are lost; a listener therefore checks for missed work when it subscribes.
"""

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, Protocol, TypeVar

import structlog

from models.notifications import NotificationsUnavailable

# Seconds between two tries to subscribe; meanwhile listeners find their work by polling, more slowly. Not tuned.
RECONNECT_S = 1.0

Message = TypeVar("Message")

log = structlog.get_logger()


class Subscription(Protocol[Message]):
    """A connection that receives the messages of one channel from now on."""

    def wait(self, within_s: float) -> list[Message]:
        """Returns the messages that came, or an empty list after `within_s`."""

    def close(self) -> None:
        """Close the connection."""


class Channel(Generic[Message]):
    """The messages of one channel; subscribes again after an error; one thread uses it."""

    def __init__(
        self, name: str, subscribe: Callable[[], Subscription[Message]], errors: tuple[type[Exception], ...]
    ) -> None:
        """`subscribe` connects; it and the subscription raise one of `errors` while the server is away."""
        self._name, self._subscribe, self._errors = name, subscribe, errors
        self._subscription: Subscription[Message] | None = None
        self._again_at = 0.0

    @property
    def subscribed(self) -> bool:
        """Whether messages that are sent now will be received."""
        return self._subscription is not None

    def wait(self, within_s: float, sleep: Callable[[float], object] = time.sleep) -> list[Message] | None:
        """Returns the messages that came, an empty list after `within_s`, or None if messages may have been missed.

        It returns None when it has just subscribed, and while it cannot subscribe: it then tries again every
        RECONNECT_S. Raises NotificationsUnavailable if a pooler keeps the notifications of Postgres away.
        """
        try:
            if self._subscription is None:
                if (pause_s := self._again_at - time.monotonic()) > 0:
                    sleep(min(within_s, pause_s))
                    return None
                self._subscription = self._subscribe()
                return None
            return self._subscription.wait(within_s)
        except self._errors as error:
            log.warning("not listening", to=self._name, error=str(error))
            self.close()
            self._again_at = time.monotonic() + RECONNECT_S
            return None

    def close(self) -> None:
        """Unsubscribe, until the next `wait`."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None


class Listener(Thread, Generic[Message]):
    """A thread that calls `on_messages` with the messages that came together.

    After it has subscribed it also calls `on_messages` with an empty list, because earlier messages may be lost.
    """

    def __init__(
        self,
        name: str,
        channel: Channel[Message],
        on_messages: Callable[[list[Message]], None],
        *,
        wait_s: float,
        on_pooler: Callable[[], None] = lambda: None,
    ) -> None:
        """The thread ends within `wait_s` of a stop. Behind a pooler it calls `on_pooler` once, and ends."""
        super().__init__(name=name, daemon=True)
        self._channel, self._on_messages, self._wait_s, self._on_pooler = channel, on_messages, wait_s, on_pooler
        self._stopping = Event()

    def run(self) -> None:
        """Listen until stopped."""
        try:
            while not self._stopping.is_set():
                messages = self._channel.wait(self._wait_s, self._stopping.wait)
                came = bool(messages) or (messages is None and self._channel.subscribed)
                if came and not self._stopping.is_set():
                    self._on_messages(messages or [])
        except NotificationsUnavailable:
            remedy = f"none needed: {self.name} are looked for often instead"
            log.info("no notifications through a pooler", remedy=remedy)
            self._on_pooler()
        finally:
            self._channel.close()

    def stop(self) -> None:
        """Stop passing messages on; returns at once, and the thread ends within `wait_s`."""
        self._stopping.set()
