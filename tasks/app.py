"""The Celery application of every background process: reads the settings and configures the logs; imports no task."""

from typing import Any

from celery import Celery, signals

from celery_config import celery_config
from settings import read_settings
from tasks import logs


class MissingSetting(Exception):
    """A background process cannot start without this setting."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} is not set; `magnus up` sets it for the processes that it starts")


def required(name: str, value: str | None) -> str:
    """The value of a setting; raises MissingSetting if it is None."""
    if value is None:
        raise MissingSetting(name)
    return value


settings = read_settings()
database_url = required("MAGNUS_DATABASE_URL", settings.database_url)
redis_url = required("MAGNUS_REDIS_URL", settings.redis_url)
app = Celery("magnus", amqp="tasks.broker_connection:PromptAmqp")
app.conf.update(celery_config(redis_url, settings.tick_s))


@signals.setup_logging.connect  # type: ignore[untyped-decorator]  # celery is untyped
def _configure_logs(**_: Any) -> None:
    logs.configure(settings.log_level)
