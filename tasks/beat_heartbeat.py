"""Beat's heartbeat: Celery has no hook in beat's loop, so that the scheduler calls back for each of its turns."""

import atexit
from typing import Any

from celery import signals

from tasks.app import database_url
from tasks.heartbeat import Heartbeat


@signals.beat_init.connect  # type: ignore[untyped-decorator]  # celery is untyped
def _begin(sender: Any, **_: Any) -> None:
    heartbeat = Heartbeat("beat", database_url)
    sender.scheduler.around_each_turn = heartbeat.working
    heartbeat.start()
    atexit.register(heartbeat.stop)
