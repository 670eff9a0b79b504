"""Messages between processes through the broker: batch ids and kicks, each of which may be lost without harm.

An unreachable broker is not an error: beat's ticks replace lost kicks, and the reconciler sends untaken batches again.
"""

from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

import redis
import structlog
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from celery_config import EXCHANGE, gpu_queue
from processes.broker import broker_client

KICK_KEY = "kicked"  # in Redis with the installation's prefix, while a kick is on its way to the planner
WRITABLE_KEY = "writable"  # in Redis with the same prefix: written to learn whether the broker takes writes
# The channel of kicks, behind the same prefix. A message of Celery's takes 20 times the CPU.
KICKS = "kicks"
NO_BATCH = 0  # the batch id of a probe: a worker that takes it shows that its queue reaches it
# If the broker loses a kick, its key blocks later kicks for this long. Beat's ticks cause steps meanwhile, so the value
# matters little; it must exceed a kick's wait for its step, 0.06 s. Not tuned.
KICK_EXPIRES_MS = 2000
# After a failure nothing is sent for this long, because each try may block for BROKER_TIMEOUT_S. A longer pause adds
# latency once the broker is back, a shorter one costs the sender time before that. Not tuned.
PAUSE_S = 2.0

log = structlog.get_logger()


class Messages:
    """Sends tasks by name, so that no process imports another process's task; any thread may call it."""

    def __init__(self, app: Celery, redis_url: str) -> None:
        self._app = app
        self._redis = broker_client(redis_url)
        prefix = app.conf.broker_transport_options.get("global_keyprefix", "")
        self._prefix, self._kick_key, self.kick_channel = prefix, prefix + KICK_KEY, prefix + KICKS
        self._writable_key = prefix + WRITABLE_KEY
        self._paused_until = 0.0
        self.broker_error: str | None = None  # why the broker refused the last message; None if it took it

    def kick_planner(self) -> None:
        """Ask the planner for a step now; kicks that come before that step begins are one message."""
        self._send(self._kick)

    def clear_kick(self) -> None:
        """Let the next kick send a message; the planner calls it when a step begins, and so learns of a full broker."""
        self._send(self._clear)

    def send_batches(self, batches: Iterable[tuple[int, str]]) -> None:
        """Send the batches, pairs of id and worker's name, that the broker takes.

        NO_BATCH replaces everything in the worker's queue, which therefore stays short even if nobody reads it.
        """
        for batch_id, worker in batches:
            name = gpu_queue(worker)
            queue = Queue(name, EXCHANGE, routing_key=name)
            if batch_id == NO_BATCH:
                self._send(partial(self._redis.delete, self._prefix + name))
            self._send(partial(self._app.send_task, "tasks.serve", args=[batch_id], queue=queue))

    def _kick(self) -> None:
        if self._redis.set(self._kick_key, 1, nx=True, px=KICK_EXPIRES_MS):
            self._redis.publish(self.kick_channel, "")

    def _clear(self) -> None:
        # a broker without memory for writes still deletes keys
        with self._redis.pipeline(transaction=False) as both:
            both.delete(self._kick_key)
            both.set(self._writable_key, 1, px=KICK_EXPIRES_MS)
            for answer in both.execute(raise_on_error=False):  # an error raised by the pipeline would quote the command
                if isinstance(answer, redis.RedisError):
                    raise answer

    def _send(self, action: Callable[[], object]) -> None:
        if monotonic() < self._paused_until:
            return
        try:
            action()
        except (redis.RedisError, OperationalError) as error:
            self._paused_until = monotonic() + PAUSE_S
            self.broker_error = str(error)
            log.warning("broker away", pause_s=PAUSE_S, error=self.broker_error)
        else:
            self.broker_error = None
