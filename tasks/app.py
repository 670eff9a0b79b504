"""Celery's application of every background process: settings, queues, logs. A wrong setting ends it with one line."""

import signal
from typing import Any

from celery import Celery, signals
from celery.app.amqp import AMQP
from kombu import Connection
from sqlalchemy.exc import SQLAlchemyError

from celery_config import RECONNECT_WITHIN_S, celery_config
from models.connections.database_errors import explain
from models.connections.installation import Installation, read_installation
from models.session import make_engine
from processes import json_logs
from processes.hosted_process import HostedProcess
from setting_mistakes import end_with, settings_or_end
from tasks.broker_transport import TolerantTransport

IGNORES_SIGHUP = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


class PromptConnection(Connection):  # type: ignore[misc]  # kombu is untyped
    """A connection to Redis, tried again every RECONNECT_WITHIN_S (kombu's pauses grow to 30 s).

    No message ends the process.
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


def required(name: str, value: str | None) -> str:
    """Returns the value of a setting; ends the process if it is None."""
    if value is None:
        end_with(f"{name} is not set; `magnus up` sets it for the processes that it starts")
    return value


def installation_of(url: str) -> Installation:
    """Returns the installation of this database; ends the process if that cannot be read."""
    engine = make_engine(url, pool_size=1, name="magnus start")
    try:
        with engine.connect() as connection:
            return read_installation(connection)
    except SQLAlchemyError as error:
        json_logs.refuse_to_start(explain(error), settings.log_level)
    finally:
        engine.dispose()


settings = settings_or_end()
database_url = required("MAGNUS_DATABASE_URL", settings.database_url)
redis_url = required("MAGNUS_REDIS_URL", settings.redis_url)
installation = installation_of(database_url)
app = Celery("magnus", amqp=PromptAmqp)
app.conf.update(celery_config(redis_url, settings.tick_s, installation.name))


def host(process: HostedProcess) -> None:
    """Start the process's parts when Celery's worker is ready, and stop them with it."""
    signals.worker_ready.connect(lambda **_: process.start(), weak=False)
    signals.worker_shutdown.connect(lambda **_: process.stop(), weak=False)


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _end_at_sighup(**_: Any) -> None:
    """Let SIGHUP end the process as SIGTERM does, unless it was started with nohup.

    Celery would begin the process again with its own command line, which does not find our modules.
    """
    if not IGNORES_SIGHUP:
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]  # before Celery's first warning
@signals.setup_logging.connect  # type: ignore[untyped-decorator]  # celery is untyped
def _configure_logs(**_: Any) -> None:
    json_logs.configure_background(settings.log_level)
