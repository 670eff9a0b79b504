"""kombu's transport for Redis, on which no message ends a process: what cannot be read is dropped and logged.

Whoever reaches Redis can put anything into a queue. kombu and Celery raise errors of many kinds for messages that are
no JSON or lack a field, and such an error would end the process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

import redis
import structlog
from kombu.transport.redis import Channel, Transport

log = structlog.get_logger()


class TolerantChannel(Channel):  # type: ignore[misc]  # kombu is untyped
    """A channel that drops whatever it reads that is not a message."""

    def _brpop_read(self, **options: Any) -> Any:
        with self._dropping_garbage():
            return super()._brpop_read(**options)

    def _receive(self) -> Any:
        with self._dropping_garbage():
            return super()._receive()

    @contextmanager
    def _dropping_garbage(self) -> Iterator[None]:
        """Raises Empty in place of errors of unreadable messages, and deletes keys of queues that hold no list."""
        try:
            yield
        except (Empty, *self.connection_errors):
            raise
        except redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            self._delete_keys_of_other_types()
            raise Empty from None
        except Exception as error:
            log.warning("unreadable message dropped", error=type(error).__name__)
            raise Empty from None

    def _delete_keys_of_other_types(self) -> None:
        keys = [self._q_for_pri(queue, priority) for queue in self.active_queues for priority in self.priority_steps]
        with self.conn_or_acquire() as client:
            for key in keys:
                try:
                    client.llen(key)
                except redis.ResponseError:
                    client.delete(key)
                    log.warning("queue that was no list deleted", queue=key)


class TolerantTransport(Transport):  # type: ignore[misc]  # kombu is untyped
    """A transport that drops messages that Celery cannot read."""

    Channel = TolerantChannel

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            super()._deliver(message, queue)
        except self.connection_errors:
            raise
        except Exception as error:
            log.warning("unreadable message dropped", queue=queue, error=type(error).__name__)
            self._forget(message)

    def _forget(self, message: Any) -> None:
        """Rejects a message that a channel counts as unacknowledged: it would take up a place of the prefetch limit."""
        properties = message.get("properties") if isinstance(message, dict) else None
        tag = properties.get("delivery_tag") if isinstance(properties, dict) else None
        for channel in self.channels:
            if isinstance(tag, str) and tag in channel.qos._delivered:
                channel.basic_reject(tag, requeue=False)
