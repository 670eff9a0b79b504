"""Beat's heartbeat: Celery has no hook in beat's loop, but its scheduler knows how long a turn lasts."""

import atexit
from typing import Any

from celery import signals

from tasks.app import database_url
from tasks.liveness.heartbeat import Heartbeat


@signals.beat_init.connect  # type: ignore[untyped-decorator]  # celery is untyped
def _begin(sender: Any, **_: Any) -> None:
    heartbeat = Heartbeat("beat", database_url, lambda: sender.scheduler.turn_s)
    heartbeat.start()
    atexit.register(heartbeat.stop)
