"""Hears the kicks of other processes over the broker's pub/sub, and has the planner step at each."""

from collections.abc import Callable
from threading import Event, Thread

import redis
import structlog

from tasks.messages import broker_client

WAIT_S = 5.0  # without a message the connection is tried so often; a peer that vanished says nothing
PAUSE_S = 1.0  # after an error; the planner's own steps and beat's ticks do the work meanwhile

log = structlog.get_logger()


class KickListener(Thread):
    """Calls `on_kick` for each kick, one after the other, and once whenever it begins to listen."""

    def __init__(self, redis_url: str, channel: str, on_kick: Callable[[], None]) -> None:
        super().__init__(name="kicks", daemon=True)
        self._redis_url, self._channel, self._on_kick = redis_url, channel, on_kick
        self._stopping = Event()

    def run(self) -> None:
        """Listen until stopped, and again after an error."""
        while not self._stopping.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                log.warning("not hearing kicks", pause_s=PAUSE_S, error=str(error))
                self._stopping.wait(PAUSE_S)

    def stop(self) -> None:
        """Have it end within WAIT_S."""
        self._stopping.set()

    def _listen(self) -> None:
        with (
            broker_client(self._redis_url) as client,
            client.pubsub(ignore_subscribe_messages=True) as subscription,
        ):
            subscription.subscribe(self._channel)
            self._on_kick()  # those before were not heard
            pinged = False
            while not self._stopping.is_set():
                message = subscription.get_message(timeout=WAIT_S)
                if message is None and pinged:
                    raise redis.TimeoutError("no answer to a ping")
                pinged = message is None
                if message is None:
                    subscription.ping()
                elif message["type"] == "message":
                    self._on_kick()
