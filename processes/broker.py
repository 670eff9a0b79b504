"""The broker, which speaks the Redis protocol: a client that never blocks for long, a subscription of one channel."""

from time import monotonic

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# Without a timeout, a publish to a frozen broker was still blocked after 40 s. Any value well above a round trip and
# below the lease of 10 s works.
BROKER_TIMEOUT_S = 2.0
# A subscription that was silent for this long is pinged, and closed after the same time again, because a vanished peer
# sends nothing. Not tuned.
PING_AFTER_S = 5.0


def broker_client(redis_url: str) -> redis.Redis:
    """Returns a client whose every call ends within BROKER_TIMEOUT_S."""
    return redis.Redis.from_url(
        redis_url,
        socket_timeout=BROKER_TIMEOUT_S,
        socket_connect_timeout=BROKER_TIMEOUT_S,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),  # redis-py's own retries would block for many seconds
    )


class BrokerSubscription:
    """Receives every message of one channel, for one thread; every method raises RedisError without a broker."""

    def __init__(self, redis_url: str, channel: str) -> None:
        self.client = broker_client(redis_url)
        self._messages = self.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._messages.subscribe(channel)
        self._heard_at, self._pinged = monotonic(), False

    def wait(self, within_s: float) -> list[bytes]:
        """Returns a list of the next message, or an empty list after `within_s` without one."""
        message = self._messages.get_message(timeout=within_s)
        if message is None:
            silent_s = monotonic() - self._heard_at
            if self._pinged and silent_s >= 2 * PING_AFTER_S:
                raise redis.TimeoutError("no answer to a ping")
            if silent_s >= PING_AFTER_S and not self._pinged:
                self._messages.ping()
                self._pinged = True
            return []
        self._heard_at, self._pinged = monotonic(), False
        return [message["data"]] if message["type"] == "message" else []

    def close(self) -> None:
        """Close the connection."""
        self._messages.close()
        self.client.close()
