"""Hears a channel of the broker's pub/sub in a thread of its own; what is said while nobody listens is lost."""

from collections.abc import Callable
from threading import Event, Thread

import redis
import structlog

from tasks.messages import broker_client

WAIT_S = 5.0  # without a message the connection is tried so often; a peer that vanished says nothing
PAUSE_S = 1.0  # after an error; whoever listens does without meanwhile. Not tuned

log = structlog.get_logger()


class ChannelListener(Thread):
    """Calls `on_message` with each message, one after the other, and `on_listening` whenever it begins to listen."""

    def __init__(
        self,
        name: str,
        redis_url: str,
        channel: str,
        on_message: Callable[[bytes], None],
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._redis_url, self._channel = redis_url, channel
        self._on_message, self._on_listening = on_message, on_listening
        self._stopping = Event()

    def run(self) -> None:
        """Listen until stopped, and again after an error."""
        while not self._stopping.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                log.warning("not listening", to=self.name, pause_s=PAUSE_S, error=str(error))
                self._stopping.wait(PAUSE_S)

    def stop(self) -> None:
        """Have it end within WAIT_S; no message is passed on any more."""
        self._stopping.set()

    def _listen(self) -> None:
        client = broker_client(self._redis_url)
        with client, client.pubsub(ignore_subscribe_messages=True) as subscription:  # type: ignore[no-untyped-call]
            subscription.subscribe(self._channel)
            self._on_listening()
            pinged = False
            while not self._stopping.is_set():
                message = subscription.get_message(timeout=WAIT_S)
                if message is None and pinged:
                    raise redis.TimeoutError("no answer to a ping")
                pinged = message is None
                if message is None:
                    subscription.ping()
                elif message["type"] == "message" and not self._stopping.is_set():
                    self._on_message(message["data"])
