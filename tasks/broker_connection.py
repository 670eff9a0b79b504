"""Celery's connection to the broker, with short pauses between the tries to reach one that is away."""

from typing import Any

from celery.app.amqp import AMQP
from kombu import Connection

from celery_config import RECONNECT_WITHIN_S


class PromptConnection(Connection):  # type: ignore[misc]  # kombu is untyped
    """A connection that is tried again every RECONNECT_WITHIN_S.

    kombu's own pauses grow to 30 s, and Celery has no setting for them.
    """

    def _ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        pauses = {"interval_start": RECONNECT_WITHIN_S, "interval_step": 0, "interval_max": RECONNECT_WITHIN_S}
        return super()._ensure_connection(*args, **{**kwargs, **pauses})


class PromptAmqp(AMQP):  # type: ignore[misc]  # celery is untyped
    """Celery's messaging on such connections."""

    Connection = PromptConnection
