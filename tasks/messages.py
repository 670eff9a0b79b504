"""What processes say to each other through the broker: ids and kicks, nothing that could not be said again.

A broker that is away is no error here: the planner's ticks take the place of kicks, the reconciler that of batches.
"""

from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

import redis
import structlog
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from celery_config import BROKER_TIMEOUT_S, EXCHANGE, gpu_queue

KICKED = "magnus.kicked"
KICK_FORGOTTEN_MS = 2000  # a kick that was lost with the broker blocks later ones for at most so long
SILENT_S = 5.0  # after a failure nothing is tried for so long: each try may take BROKER_TIMEOUT_S

log = structlog.get_logger()


class Messages:
    """Publishes by task name, so that nobody imports another process's task; any thread may."""

    def __init__(self, app: Celery, redis_url: str) -> None:
        self._app = app
        self._redis = redis.Redis.from_url(
            redis_url, socket_timeout=BROKER_TIMEOUT_S, socket_connect_timeout=BROKER_TIMEOUT_S
        )
        self._silent_until = 0.0

    def kick_planner(self) -> None:
        """Ask for a planner's step now; any number of kicks before it begins make one step."""
        self._try(self._kick)

    def take_kick(self) -> None:
        """Begin a step: whatever happens from here on needs a new kick."""
        self._try(partial(self._redis.delete, KICKED))

    def serve(self, batches: Iterable[tuple[int, str]]) -> None:
        """Tell workers to take batches; (batch id, worker's name)."""
        for batch_id, worker in batches:
            name = gpu_queue(worker)
            queue = Queue(name, EXCHANGE, routing_key=name)
            self._try(partial(self._app.send_task, "tasks.serve", args=[batch_id], queue=queue))

    def _kick(self) -> None:
        if self._redis.set(KICKED, 1, nx=True, px=KICK_FORGOTTEN_MS):
            self._app.send_task("tasks.plan")

    def _try(self, act: Callable[[], object]) -> None:
        if monotonic() < self._silent_until:
            return
        try:
            act()
        except (redis.RedisError, OperationalError) as error:
            self._silent_until = monotonic() + SILENT_S
            log.warning("broker away", silent_s=SILENT_S, error=str(error))
