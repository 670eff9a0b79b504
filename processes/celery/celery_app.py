"""What every background process begins with: settings, installation, Celery's application with its queues and logs."""

import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar

from celery import Celery, signals
from celery.app.amqp import AMQP
from celery.worker.request import Request
from kombu import Connection
from sqlalchemy.exc import SQLAlchemyError

from celery_config import RECONNECT_WITHIN_S, TICK_S, celery_config
from models.connections.database_errors import explain
from models.connections.installation import Installation, read_installation
from models.connections.session import brief_engine
from processes import json_logs
from processes.celery.broker_transport import TolerantTransport
from processes.hosted_process import HostedProcess
from setting_mistakes import end_with, settings_or_end
from settings import Settings

# Seconds between Celery's own heartbeats, which only Flower reads. With Celery's default of 2 s they would take most of
# an idle worker's CPU time.
FLOWER_HEARTBEAT_S = 30
EVENTS_EVERY_S = 1.0  # a process shows Flower at most one tick of a name in this time; any value near a second works


class PromptConnection(Connection):  # type: ignore[misc]  # kombu is untyped
    """A connection to Redis, tried again every RECONNECT_WITHIN_S (kombu's pauses grow to 30 s).

    No unreadable message ends the process.
    """

    def get_transport_cls(self) -> type[TolerantTransport]:
        """Returns the transport for every form of Redis's address."""
        return TolerantTransport

    def _ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        pauses = {"interval_start": RECONNECT_WITHIN_S, "interval_step": 0, "interval_max": RECONNECT_WITHIN_S}
        return super()._ensure_connection(*args, **{**kwargs, **pauses})


class PromptAmqp(AMQP):  # type: ignore[misc]  # celery is untyped
    """Celery's messaging on a PromptConnection."""

    Connection = PromptConnection


@dataclass(frozen=True)
class CeleryService:
    """The service as one of its background processes reaches it, with Celery's application for that process."""

    settings: Settings
    database_url: str
    redis_url: str
    installation: Installation
    app: Celery


def celery_service() -> CeleryService:
    """Reads settings and installation, once in a process; ends the process with one line if either is unusable."""
    settings = settings_or_end()
    database_url = _required("MAGNUS_DATABASE_URL", settings.database_url)
    redis_url = _required("MAGNUS_REDIS_URL", settings.redis_url)
    installation = _installation_of(database_url, settings.log_level)
    app = Celery("magnus", amqp=PromptAmqp)
    app.conf.update(celery_config(redis_url, TICK_S, installation.name))

    def configure_logs(**_: Any) -> None:
        json_logs.configure_background(settings.log_level)

    signals.celeryd_init.connect(configure_logs, weak=False)  # before Celery's first warning
    signals.setup_logging.connect(configure_logs, weak=False)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # unless it was started with nohup
        signals.worker_ready.connect(_end_at_sighup, weak=False)
    return CeleryService(settings, database_url, redis_url, installation, app)


def _end_at_sighup(**_: Any) -> None:
    """Let SIGHUP end the process as SIGTERM does.

    Celery would begin the process again with its own command line, which does not find our modules.
    """
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))


def _required(name: str, value: str | None) -> str:
    if value is None:
        end_with(f"{name} is not set; `magnus up` sets it for the processes that it starts")
    return value


def _installation_of(url: str, log_level: str) -> Installation:
    try:
        with brief_engine(url, "magnus start") as engine, engine.connect() as connection:
            return read_installation(connection)
    except SQLAlchemyError as error:
        json_logs.refuse_to_start(explain(error), log_level)


def run(make: Callable[[CeleryService], HostedProcess], queue: str, name: str) -> int:
    """Runs a background process that Celery wakes by a queue, until a signal comes; returns the exit status."""
    service = celery_service()
    process = make(service)
    signals.worker_ready.connect(lambda **_: process.start(), weak=False)
    signals.worker_shutdown.connect(lambda **_: process.stop(), weak=False)
    return consume(service.app, queue, name, threads=1)


def consume(app: Any, queue: str, name: str, threads: int) -> int:
    """Runs the tasks of a queue, at most `threads` at once, until a signal comes; returns the exit status."""
    worker = app.Worker(
        hostname=f"{name}@{socket.gethostname()}",
        queues=queue,
        pool="threads",
        concurrency=threads,
        # nothing here needs Celery's gossip between workers (events, clocks at the start)
        without_gossip=True,
        without_mingle=True,
        heartbeat_interval=FLOWER_HEARTBEAT_S,
        quiet=True,  # without Celery's banner, which would spoil the log
    )
    worker.start()
    return worker.exitcode or 0


class BoundedEvents(Request):  # type: ignore[misc]  # celery is untyped
    """Sends events for at most one tick a second of each name, so that Flower has space for batches.

    Its task is declared with `send_events=False`, which keeps Celery from sending all events.
    """

    _shown_at: ClassVar[dict[str, float]] = {}  # by task: when this process last showed a tick

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        now = monotonic()
        self._shown = now - self._shown_at.get(self.name, float("-inf")) >= EVENTS_EVERY_S
        if self._shown:
            self._shown_at[self.name] = now
            self.send_event("task-received", name=self.name, args=self.argsrepr, kwargs=self.kwargsrepr)

    def send_event(self, type: str, **fields: Any) -> None:
        """Send the event of a request that is shown."""
        if self._shown and self.eventer and self.eventer.enabled:
            self.eventer.send(type, uuid=self.id, **fields)


def on_ticks(app: Celery, name: str, step: Callable[[], object]) -> None:
    """Makes `step` the task that beat's ticks of this name run."""

    @app.task(name=f"tasks.{name}", send_events=False, Request=BoundedEvents)  # type: ignore[untyped-decorator]
    def tick() -> None:
        step()
