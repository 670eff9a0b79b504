"""Messages between processes through the broker: batch ids and kicks, each of which may be lost without harm.

An unreachable broker is not an error: beat's ticks replace lost kicks, and the reconciler sends untaken batches again.
"""

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from uuid import uuid4

import redis
import structlog
from celery import Celery
from redis.client import Pipeline

from celery_config import gpu_queue
from processes.broker import broker_client

KICK_KEY = "kicked"  # this key, behind the installation's prefix, is set while a kick is on its way to the planner
WRITABLE_KEY = "writable"  # this key, behind the same prefix, is written to learn whether the broker takes writes
# The channel of kicks, behind the same prefix. A kick as a Celery message would take 20 times the CPU.
KICKS = "kicks"
SOON = b"soon"  # the content of a kick that ends the planner's pause
NO_BATCH = 0  # the batch id of a probe: a worker that takes it shows that its queue reaches it
# If the broker loses a kick, its key blocks later kicks for this long. Beat's ticks cause steps meanwhile, so the value
# matters little; it must exceed a kick's wait for its step, 0.06 s. Not tuned.
KICK_EXPIRES_MS = 2000
# After a failure nothing is sent for this long, because each try may block for BROKER_TIMEOUT_S. A longer pause adds
# latency once the broker is back, a shorter one costs the sender time while it is away. Not tuned.
PAUSE_S = 2.0
log = structlog.get_logger()


class Messages:
    """Sends tasks by name, so that no process imports another process's task; any thread may call it."""

    def __init__(self, app: Celery, redis_url: str) -> None:
        self._app, self._redis = app, broker_client(redis_url)
        prefix = app.conf.broker_transport_options.get("global_keyprefix", "")
        self._prefix, self._kick_key, self.kick_channel = prefix, prefix + KICK_KEY, prefix + KICKS
        self._writable_key = prefix + WRITABLE_KEY
        self._paused_until = 0.0
        self.broker_error: str | None = None  # why the broker refused the last message; None if it took it

    def kick_planner(self, *, soon: bool = False) -> None:
        """Ask the planner for a step; kicks that come before that step begins are one message.

        With `soon` the planner may end its pause beside a bulk job, so that a request need not wait for the pause.
        """
        self._send(partial(self._kick, SOON if soon else b""))

    def clear_kick(self) -> None:
        """Let the next kick send a message; the planner calls it when a step begins, and so learns of a full broker."""
        self._send(self._clear)

    def send_batches(self, batches: Sequence[tuple[int, str]]) -> None:
        """Send each batch, a pair of its id and its worker's name, all in one round trip.

        NO_BATCH replaces everything in the worker's queue, which therefore stays short even if nobody reads it.
        """
        if batches:
            self._send(partial(self._push, batches))

    def _push(self, batches: Iterable[tuple[int, str]]) -> None:
        with self._redis.pipeline(transaction=False) as commands:
            for batch_id, worker in batches:
                queue = gpu_queue(worker)
                if batch_id == NO_BATCH:
                    commands.delete(self._prefix + queue)
                commands.lpush(self._prefix + queue, serve_message(self._app, batch_id, queue))
            _execute(commands)

    def _kick(self, kind: bytes) -> None:
        if self._redis.set(self._kick_key + kind.decode(), 1, nx=True, px=KICK_EXPIRES_MS):
            self._redis.publish(self.kick_channel, kind)

    def _clear(self) -> None:
        # a broker without memory for writes still deletes keys
        with self._redis.pipeline(transaction=False) as both:
            both.delete(self._kick_key, self._kick_key + SOON.decode())
            both.set(self._writable_key, 1, px=KICK_EXPIRES_MS)
            _execute(both)

    def _send(self, action: Callable[[], object]) -> None:
        if monotonic() < self._paused_until:
            return
        try:
            action()
        except redis.RedisError as error:
            self._paused_until = monotonic() + PAUSE_S
            self.broker_error = str(error)
            log.warning("broker away", pause_s=PAUSE_S, error=self.broker_error)
        else:
            self.broker_error = None


def _execute(commands: Pipeline) -> None:
    """Run the commands; raise the broker's first error as it is: the pipeline would add the command's text to it."""
    for answer in commands.execute(raise_on_error=False):
        if isinstance(answer, redis.RedisError):
            raise answer


def serve_message(app: Celery, batch_id: int, queue: str) -> str:
    """Return a call of `tasks.serve` as a Celery worker reads it from a list of Redis.

    Celery's own `send_task` would take 0.5 ms and a round trip for each; a test compares its message with this one.
    """
    call = app.amqp.as_task_v2(str(uuid4()), "tasks.serve", args=[batch_id], ignore_result=True)
    return json.dumps(
        {
            "body": base64.b64encode(json.dumps(call.body).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": call.headers,
            "properties": {
                **call.properties,
                "delivery_mode": 1,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": call.headers["id"],
            },
        }
    )
